"""Measures how fast the GPU's memory is copied, with the torch that the training uses.

Arguments: the number of float32 elements (0: as many as fit well into what is free, at
most the third argument), the number of copies, the largest number of elements. Prints one
line, "sparkrun-bandwidth:" and a JSON object: "gbps" and what it was measured with,
"refused" where it was not tried, or "error" where it went wrong.
"""

import json
import sys
import time

SMALLEST = 10_000_000  # fewer elements would measure the caches


def measure(elements, copies, most):
    import torch

    about = {"torch": str(torch.__version__)}
    if not torch.cuda.is_available():
        return dict(about, error="torch " + about["torch"] + " finds no CUDA device")
    about["device"] = str(torch.cuda.get_device_name(0))
    if elements == 0:
        free = torch.cuda.mem_get_info(0)[0]
        elements = min(most, int(free * 0.6) // 12)
    if elements < SMALLEST:
        return dict(about, refused="the GPU has too little memory free")
    source = torch.ones(elements, dtype=torch.float32, device="cuda:0")
    copy = source.clone()  # the first one pays for its memory
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(copies):
        copy = source.clone()
    torch.cuda.synchronize()
    took = time.perf_counter() - start
    peak = int(torch.cuda.max_memory_allocated(0))
    size = source.numel() * source.element_size()
    del source, copy
    torch.cuda.empty_cache()
    # Every copy reads all of it and writes all of it.
    return dict(about, gbps=2 * size * copies / took / 1e9, bytes=size, copies=copies, peak=peak)


def main():
    try:
        result = measure(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    except BaseException as problem:  # whatever it is, somebody waits for the line
        result = {"error": type(problem).__name__ + ": " + str(problem)[:500]}
    sys.stdout.write("\nsparkrun-bandwidth:" + json.dumps(result) + "\n")
    sys.stdout.flush()


main()
