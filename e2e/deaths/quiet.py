"""Runs out of GPU memory, as far as its output goes, and does not die of it.

    python quiet.py HOW [--max-length N]

HOW is what follows:
    stuck    nothing any more, while another rank waits; a length of 2048 or less fits
    paced    the same, after steps that took 0.8 s each
    alive    dots, until the file "go" is there; then two steps and the end
    steps    steps, until the file "go" is there; then nothing until there is "end"
    exit     the end, with status 0
HOW "silent" has no such line: two steps, then nothing until the file "go" is there.
"""

import argparse
import os
import subprocess
import sys
import time
import traceback


class OutOfMemoryError(RuntimeError):
    """Is printed as torch's own."""


OutOfMemoryError.__module__ = "torch"

MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 119.70 GiB of which 1.25 GiB is free. "
    "Of the allocated memory 112.00 GiB is allocated by PyTorch, and 214.00 MiB is reserved by PyTorch but unallocated."
)


def training_step():
    raise OutOfMemoryError(MESSAGE)


def out_of_memory():
    try:
        training_step()
    except OutOfMemoryError:
        traceback.print_exc()
    sys.stderr.flush()


def steps(first, last, pause=0.0):
    for step in range(first, last + 1):
        time.sleep(pause)
        print("step %d/900 loss %.2f" % (step, 3 - step / 1000), flush=True)


def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("how")
    p.add_argument("--max-length", type=int, default=4096)
    args = p.parse_args()
    with open("starts", "a") as f:
        f.write("started\n")
    if args.how in ("stuck", "paced") and args.max_length <= 2048:
        steps(1, 4)
        print("fits", flush=True)
    elif args.how in ("stuck", "paced"):
        subprocess.Popen(["sleep", "300"])
        steps(1, 5, 0.8 if args.how == "paced" else 0)
        out_of_memory()
        while True:
            time.sleep(60)
    elif args.how == "alive":
        out_of_memory()
        while not os.path.exists("go"):
            print(".", end="", flush=True)
            time.sleep(0.1)
        print(flush=True)
        steps(1, 2)
    elif args.how == "steps":
        steps(1, 2)
        out_of_memory()
        step = 3
        while not os.path.exists("go"):
            steps(step, step, 0.1)
            step += 1
        open("quiet", "w").close()
        wait_for("end")
    elif args.how == "silent":
        steps(1, 2)
        wait_for("go")
    elif args.how == "exit":
        out_of_memory()
    else:
        p.error("no such HOW")


main()
