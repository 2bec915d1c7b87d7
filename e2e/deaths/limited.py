"""Asks for more memory than its address space may have, in a phase of the training.

    prlimit --as=6000000000 python limited.py {load,train,eval,save,handled}

With "handled" it survives that, makes some steps and then dies of a mistake.
"""

import sys

MORE_THAN_ALLOWED = 8 << 30


def from_pretrained():
    return bytearray(MORE_THAN_ALLOWED)


def training_step():
    return bytearray(MORE_THAN_ALLOWED)


def evaluate():
    return bytearray(MORE_THAN_ALLOWED)


def save_checkpoint():
    return bytearray(MORE_THAN_ALLOWED)


def steps(first, last):
    for step in range(first, last + 1):
        print("step %d/20 loss %.2f" % (step, 3 - step / 10), flush=True)


def main():
    with open("starts", "a") as f:
        f.write("started\n")
    phase = sys.argv[1]
    if phase == "load":
        return from_pretrained()
    steps(1, 4)
    if phase == "train":
        return training_step()
    if phase == "eval":
        return evaluate()
    if phase == "save":
        return save_checkpoint()
    try:
        training_step()
    except MemoryError as err:
        print("MemoryError:", err, "- skipping this batch", flush=True)
    steps(5, 12)
    return {}["no such key"]


main()
