"""Saves checkpoints until the disk is full.

    python full_disk.py --output_dir DIR
"""

import argparse
import os


def save_checkpoint(folder, step):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "checkpoint-%d.bin" % step), "wb") as f:
        for _ in range(16):
            f.write(b"\1" * (64 << 10))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--output_dir", required=True)
    p.add_argument("--max_length", type=int, default=4096)
    args = p.parse_args()
    with open("starts", "a") as f:
        f.write("started\n")
    for step in range(1, 100):
        print("step %d/100 loss %.2f" % (step, 3 - step / 100), flush=True)
        save_checkpoint(args.output_dir, step)


main()
