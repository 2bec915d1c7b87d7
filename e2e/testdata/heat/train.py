"""A trainer's double that plays a plan: it prints steps with their times, and changes
what the fake GPU and the recorded tree of sensors say between them.

    python3 train.py PLAN

A line of the plan is one of
    fake KEY VALUE ...     the fake GPU, from now on (see fakenvml.c)
    tree FILE TEXT         a file of the recorded tree says TEXT, from now on
    gone FILE              a file of the recorded tree is removed
    begin SECONDS          steps until a row of telemetry.csv has one: from then on there is
                           nothing of the start in what is measured
    train SECONDS N        N steps, each told with that time
    train SECONDS until X  steps until events.jsonl has X
    rows N                 waits for N more rows of telemetry.csv
    pressed PERCENT        steps until processes really wait so much for memory
    append FILE TEXT       a line for FILE, with MONO in it replaced by the kernel's time
    say TEXT               prints a line
"""

import os
import sys
import time

PATIENCE = 60  # seconds
RUN = os.environ["SPARKRUN_RUN_DIR"]
ROOT = os.environ["SPARKRUN_TEST_ROOT"]
SCENARIO = os.environ["FAKENVML_SCENARIO"]
START = float(os.environ["FAKENVML_T0"])
step = 0


def fake(words):
    with open(SCENARIO) as f:
        played = f.read()
    with open(SCENARIO + ".new", "w") as f:
        f.write(f"{played}at {time.time() - START:.6f}s {words}\n")
    os.rename(SCENARIO + ".new", SCENARIO)


def tree(name, words):
    """Kernel files stay open in the sampler: the text changes in its place, by one write
    of the old length, so that no reader sees a part of it."""
    path = os.path.join(ROOT, name)
    size = os.stat(path).st_size
    data = (words.replace("\\n", "\n") + "\n").encode().ljust(size)
    if len(data) != size:
        sys.exit(f"{name} has room for {size} bytes, not for {len(data)}")
    f = os.open(path, os.O_WRONLY)
    os.pwrite(f, data, 0)
    os.close(f)


def told(text):
    try:
        with open(os.path.join(RUN, "events.jsonl")) as f:
            return text in f.read()
    except FileNotFoundError:
        return False


def rows():
    try:
        with open(os.path.join(RUN, "telemetry.csv")) as f:
            return f.read().count("\n")
    except FileNotFoundError:
        return 0


def waiting(what):
    """Goes on until the caller is content, or for so long and no longer."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        yield
    sys.exit(f"never happened: {what}")


def one_step(seconds):
    global step
    step += 1
    time.sleep(seconds)
    print({"loss": 3 - step / 1000, "step": step, "step_time": seconds}, flush=True)


def train(seconds, how):
    if how[0] != "until":
        for _ in range(int(how[0])):
            one_step(seconds)
        return
    text = " ".join(how[1:])
    for _ in waiting(text):
        one_step(seconds)
        if told(text):
            return


def begin(seconds):
    for _ in waiting("a row with a step"):
        one_step(seconds)
        try:
            with open(os.path.join(RUN, "telemetry.csv")) as f:
                last = f.read().rstrip("\n").rpartition("\n")[2].split(",")
        except FileNotFoundError:
            continue
        if len(last) > 3 and last[3].isdigit():
            return


def pressed(percent):
    for _ in waiting(f"memory pressure of {percent} %"):
        one_step(0.1)
        with open("/proc/pressure/memory") as f:
            if float(f.read().split("avg10=")[1].split()[0]) >= percent:
                return


def append(name, text):
    with open(name, "a") as f:
        f.write(text.replace("MONO", f"{time.clock_gettime(time.CLOCK_MONOTONIC):.6f}") + "\n")


def wait_rows(n):
    last = rows() + n
    for _ in waiting(f"{n} more rows"):
        if rows() >= last:
            return
        time.sleep(0.02)


for line in open(sys.argv[1]):
    word, _, rest = line.strip().partition(" ")
    if word == "fake":
        fake(rest)
    elif word == "tree":
        tree(*rest.split(" ", 1))
    elif word == "gone":
        os.remove(os.path.join(ROOT, rest))
    elif word == "begin":
        begin(float(rest))
    elif word == "pressed":
        pressed(float(rest))
    elif word == "append":
        append(*rest.split(" ", 1))
    elif word == "train":
        train(float(rest.split()[0]), rest.split()[1:])
    elif word == "rows":
        wait_rows(int(rest))
    elif word == "say":
        print(rest, flush=True)
    elif word:
        sys.exit(f"what is {line!r}?")
