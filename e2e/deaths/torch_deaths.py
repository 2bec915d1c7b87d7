"""Deaths of real torch processes.

    python torch_deaths.py allocator      torch's CPU allocator refuses
    python torch_deaths.py worker-greedy  a worker of the DataLoader takes memory until it is killed
    python torch_deaths.py worker-waits   a worker waits to be killed; its pid is in the file worker.pid
    python torch_deaths.py collate        a worker's batch does not fit into /dev/shm: the worker says so and dies
    python torch_deaths.py feeder         its tensors do not, a thread says so, and the parent waits for ever
"""

import os
import resource
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, how):
        self.how = how

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index < 2:
            return torch.ones(16)
        if self.how == "worker-greedy":
            held = []
            while True:
                held.append(torch.ones(4 << 20))
        if self.how == "worker-waits":
            with open("worker.part", "w") as f:
                f.write(str(os.getpid()))
            os.rename("worker.part", "worker.pid")
            while True:
                time.sleep(60)
        return torch.ones(4 << 20)  # 16 MiB


def limit_memory(room):
    """torch has mapped gigabytes by now: a limit says something only on top of that."""
    with open("/proc/self/statm") as f:
        mapped = int(f.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + room, resource.getrlimit(resource.RLIMIT_AS)[1]))


def training_step():
    x = torch.ones(1 << 20)
    limit_memory(512 << 20)
    return x + torch.empty(1 << 30)  # 4 GiB


def main():
    with open("starts", "a") as f:
        f.write("started\n")
    how = sys.argv[1]
    if how == "allocator":
        training_step()
    else:
        rows = DataLoader(Rows(how), num_workers=1, batch_size=1 if how == "collate" else None)
        for step, row in enumerate(rows, 1):
            print("step %d/64 loss %.2f" % (step, float(row.flatten()[0])), flush=True)
    print("fits", flush=True)


main()
