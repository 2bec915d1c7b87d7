"""Takes memory in small pieces until the kernel ends it.

    python greedy.py               this process takes it
    python greedy.py worker-lost   a worker takes it, and the training goes on without
    python greedy.py pool          a worker of a process pool takes it, and the pool breaks
"""

import concurrent.futures
import multiprocessing
import sys
import time

PIECE = 4 << 20


def take(_=None):
    held = []
    while True:
        held.append(b"\1" * PIECE)


def main():
    with open("starts", "a") as f:
        f.write("started\n")
    how = sys.argv[1] if len(sys.argv) > 1 else ""
    print("taking memory", flush=True)
    if how == "worker-lost":
        worker = multiprocessing.get_context("fork").Process(target=take)
        worker.start()
        worker.join()
        print("going on without the worker", flush=True)
        for step in range(1, 9):
            time.sleep(0.3)
            print("step %d/8 loss %.2f" % (step, 3 - step / 10), flush=True)
        print("saved", flush=True)
    elif how == "pool":
        with concurrent.futures.ProcessPoolExecutor(1) as pool:
            pool.submit(take).result()
    else:
        take()


main()
