"""Makes two steps, then waits for the file "go" and exits with the status given.

    python waiting.py 137
"""

import os
import sys
import time


def main():
    with open("starts", "a") as f:
        f.write("started\n")
    print("step 1/9 loss 2.10", flush=True)
    print("step 2/9 loss 2.00", flush=True)
    with open("pid.part", "w") as f:
        f.write(str(os.getpid()))
    os.rename("pid.part", "pid")
    while not os.path.exists("go"):
        time.sleep(0.01)
    sys.exit(int(sys.argv[1]))


main()
