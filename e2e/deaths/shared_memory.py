"""Shares tensors through files in /dev/shm until that is full: a bus error.

    python shared_memory.py           the file is left behind
    python shared_memory.py unlinked  the file has no name any more, as torch does it

With "unlinked" it waits at 95 % for the file "go".
"""

import mmap
import os
import sys
import time

PATH = "/dev/shm/torch_%d_1_0" % os.getpid()
PIECE = 64 << 10


def main():
    with open("starts", "a") as f:
        f.write("started\n")
    room = os.statvfs("/dev/shm")
    size = room.f_blocks * room.f_frsize
    fd = os.open(PATH, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.ftruncate(fd, 2 * size)
    shared = mmap.mmap(fd, 2 * size)
    unlinked = "unlinked" in sys.argv
    if unlinked:
        os.unlink(PATH)
    print("step 1/9 loss 2.10", flush=True)
    at = 0
    while at < size * 95 // 100:
        shared[at : at + PIECE] = b"\1" * PIECE
        at += PIECE
    print("nearly full", flush=True)
    while unlinked and not os.path.exists("go"):
        time.sleep(0.01)
    while True:
        shared[at : at + PIECE] = b"\1" * PIECE
        at += PIECE


main()
