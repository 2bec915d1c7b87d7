#!/usr/bin/env python3
"""A small training run in plain Python 3.8+, to try sparkrun on without a GPU or any package.

It trains a byte-level bigram language model with Adam on a text file (its own source
unless --train_file names another). It behaves like a Hugging Face script where that
matters to a wrapper: the same flags, log lines, progress bar, checkpoint folders and
--resume_from_checkpoint. The activations of one micro-batch are kept until its backward
pass is done, so memory grows with max_length * per_device_train_batch_size: 10 KiB a
token, 320 MiB at 4096 x 8. With --memory-limit that ends in a real MemoryError.
"""

import argparse
import json
import math
import os
import random
import resource
import struct
import sys
import time
from array import array

VOCAB = 256  # one token per byte
BETA1, BETA2, EPS = 0.9, 0.95, 1e-8


# ---------------------------------------------------------------- command line


def parse_bool(text):
    """Accepts what HfArgumentParser accepts after a boolean flag."""
    if text.lower() in ("true", "t", "yes", "y", "1"):
        return True
    if text.lower() in ("false", "f", "no", "n", "0"):
        return False
    raise argparse.ArgumentTypeError("%r is neither true nor false" % text)


def parse_size(text):
    """'300M' -> bytes; K, M and G are powers of 1024, a bare number is bytes."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    digits = text.upper().rstrip("B").rstrip("I")
    unit = units.get(digits[-1:], 1)
    try:
        size = int(float(digits.rstrip("KMG")) * unit)
    except ValueError:
        raise argparse.ArgumentTypeError("%r is no size such as 300M or 2G" % text)
    if size <= 0:
        raise argparse.ArgumentTypeError("the size must be more than 0")
    return size


def at_least(smallest):
    """Makes a parser for whole numbers from `smallest` on."""

    def parse_count(text):
        value = int(text)
        if value < smallest:
            raise argparse.ArgumentTypeError("must be at least %d, not %d" % (smallest, value))
        return value

    return parse_count


def parse_args(argv=None):
    parser = argparse.ArgumentParser(
        description="Train a byte-level bigram model; see the head of this file.", allow_abbrev=False
    )

    def flag(name, **kwargs):
        # Like HfArgumentParser: --max_length and --max-length mean the same.
        spellings = ["--" + name]
        if "_" in name:
            spellings.append("--" + name.replace("_", "-"))
        parser.add_argument(*spellings, dest=name, **kwargs)

    flag("train_file", default=os.path.abspath(__file__), help="text to learn (default: this script)")
    flag("output_dir", default="trainer_output", help="where checkpoints and the model go")
    flag("max_length", type=at_least(2), default=1024, help="tokens in a row")
    flag("packing", type=parse_bool, nargs="?", const=True, default=True, help="fill rows with running text; False: one paragraph a row, padded")
    flag("per_device_train_batch_size", type=at_least(1), default=8, help="rows in memory at once")
    flag("gradient_accumulation_steps", type=at_least(1), default=1, help="micro-batches in an optimizer step")
    flag("max_steps", type=at_least(1), default=60, help="optimizer steps in all")
    flag("learning_rate", type=float, default=0.2, help="at step 1; falls to 0 in a straight line")
    flag("logging_steps", type=at_least(1), default=10, help="steps between log lines")
    flag("save_steps", type=at_least(0), default=20, help="steps between checkpoints, 0: none")
    flag("seed", type=int, default=42, help="chooses the rows")
    flag("resume_from_checkpoint", metavar="PATH", help="a checkpoint folder, or True for the newest in output_dir")
    flag("disable_tqdm", type=parse_bool, nargs="?", const=True, default=False, help="no progress bar")
    flag("memory_limit", type=parse_size, metavar="SIZE", help="address space beyond what Python itself has mapped, such as 300M")
    return parser.parse_args(argv)


def limit_memory(extra):
    """Lets the process map `extra` more bytes than it does now (RLIMIT_AS).

    An absolute limit would mean something else on every machine: a bare interpreter
    maps anything from 15 to 300 MB, depending on its build and the locale archive.
    """
    with open("/proc/self/statm") as f:
        mapped = int(f.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (mapped + extra, hard))


# ------------------------------------------------------------------------ data


class Rows:
    """Cuts training rows out of a text. Step and seed alone decide which ones, so a
    resumed run, or one with half the batch and twice the accumulation, sees the same."""

    def __init__(self, path, length, packing, seed):
        with open(path, "rb") as f:
            self.text = f.read()
        if len(self.text) < 2:
            raise SystemExit("%s is too short to learn anything from" % path)
        self.length, self.packing, self.seed = length, packing, seed
        self.paragraphs = [p for p in self.text.split(b"\n\n") if p.strip()]

    def step(self, number, count):
        """Yields the rows of one optimizer step; a row is length + 1 bytes long."""
        rng = random.Random(self.seed * 1000003 + number)
        for _ in range(count):
            if self.packing:
                start = rng.randrange(len(self.text))
                source = self.text[start:] + self.text * (self.length // len(self.text) + 2)
            else:
                source = rng.choice(self.paragraphs) + bytes(self.length + 1)
            yield source[: self.length + 1]


# ----------------------------------------------------------------------- model


class Bigram:
    """p(next byte | byte): one row of 256 logits for each byte, trained with Adam."""

    def __init__(self):
        self.weight = array("d", bytes(8 * VOCAB * VOCAB))
        self.first = array("d", self.weight)  # Adam's moments
        self.second = array("d", self.weight)

    def row(self, byte):
        return self.weight[byte * VOCAB : (byte + 1) * VOCAB]

    def tables(self, seen):
        """The softmax, stage by stage, of each byte that occurs in the batch."""
        shifted, powers, logprobs, probs = {}, {}, {}, {}
        for byte in seen:
            row = self.row(byte)
            top = max(row)
            shifted[byte] = array("d", [x - top for x in row])
            powers[byte] = array("d", map(math.exp, shifted[byte]))
            total = sum(powers[byte])
            logprobs[byte] = array("d", [x - math.log(total) for x in shifted[byte]])
            probs[byte] = array("d", [x / total for x in powers[byte]])
        return shifted, powers, logprobs, probs

    def forward(self, rows):
        """Returns the summed loss of a micro-batch and the activations for backward."""
        seen = sorted(set(b"".join(rows)))
        weight = {byte: self.row(byte) for byte in seen}
        shifted, powers, logprobs, probs = self.tables(seen)
        loss, kept = 0.0, []
        for row in rows:
            inputs, targets = row[:-1], row[1:]
            hidden = gather(weight, inputs)
            stages = [gather(table, inputs) for table in (shifted, powers, logprobs, probs)]
            places = range(0, len(inputs) * VOCAB, VOCAB)
            loss -= sum(stages[2][at + target] for at, target in zip(places, targets))
            kept.append((inputs, targets, hidden, stages))
        return loss, kept

    def backward(self, kept, grad):
        """Adds the gradient of a micro-batch to `grad`, {byte: 256 sums}: for each token
        its probabilities, less 1 at the target. Equal bytes have equal probabilities, so
        they are added once, times their number: pure Python has no fast matrix product."""
        probs = {}
        for inputs, _, _, stages in kept:
            for place, byte in enumerate(inputs):
                probs[byte] = stages[3][place * VOCAB : (place + 1) * VOCAB]
        everything = b"".join(inputs for inputs, _, _, _ in kept)
        for byte, row in probs.items():
            count, sums = everything.count(byte), grad.get(byte, bytes(VOCAB))
            grad[byte] = array("d", [s + count * p for s, p in zip(sums, row)])
        for inputs, targets, _, _ in kept:
            for byte, target in zip(inputs, targets):
                grad[byte][target] -= 1.0

    def update(self, grad, tokens, rate, step):
        """One Adam step over the bytes that occurred; returns the gradient's norm."""
        bias1, bias2 = 1 - BETA1**step, 1 - BETA2**step
        squares = 0.0
        for byte, sums in sorted(grad.items()):
            for at, total in enumerate(sums, byte * VOCAB):
                g = total / tokens
                squares += g * g
                self.first[at] = m = BETA1 * self.first[at] + (1 - BETA1) * g
                self.second[at] = v = BETA2 * self.second[at] + (1 - BETA2) * g * g
                self.weight[at] -= rate * (m / bias1) / (math.sqrt(v / bias2) + EPS)
        return math.sqrt(squares)


def gather(table, inputs):
    """One row of the table for each token, laid out one after the other."""
    return memoryview(b"".join(map(table.__getitem__, inputs))).cast("d")


# ----------------------------------------------------------------- checkpoints


def write_safetensors(path, tensors):
    """The safetensors format: length of the header, header as JSON, then the bytes."""
    header, offset = {"__metadata__": {"format": "py"}}, 0
    for name, values in tensors.items():
        end = offset + 8 * len(values)
        header[name] = {"dtype": "F64", "shape": [VOCAB, VOCAB], "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            f.write(values.tobytes())


def read_safetensors(path):
    with open(path, "rb") as f:
        (size,) = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(size)), f.read()
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = array("d", data[begin:end])
    return tensors


def save_checkpoint(folder, model, state):
    """Writes a folder like the Trainer's. trainer_state.json comes last and at one
    stroke: where it is, the rest is whole. An old one would lie about a new rest."""
    os.makedirs(folder, exist_ok=True)
    last = os.path.join(folder, "trainer_state.json")
    if os.path.exists(last):
        os.remove(last)
    write_safetensors(os.path.join(folder, "model.safetensors"), {"bigram.weight": model.weight})
    # The Trainer's name for this file; the content is safetensors too, as torch is not here.
    write_safetensors(os.path.join(folder, "optimizer.safetensors"), {"exp_avg": model.first, "exp_avg_sq": model.second})
    with open(last + ".tmp", "w") as f:
        json.dump(state, f, indent=2, sort_keys=True)
    os.replace(last + ".tmp", last)


def load_checkpoint(folder, model):
    with open(os.path.join(folder, "trainer_state.json")) as f:
        state = json.load(f)
    model.weight = read_safetensors(os.path.join(folder, "model.safetensors"))["bigram.weight"]
    moments = read_safetensors(os.path.join(folder, "optimizer.safetensors"))
    model.first, model.second = moments["exp_avg"], moments["exp_avg_sq"]
    return state


def newest_checkpoint(output_dir):
    names = os.listdir(output_dir) if os.path.isdir(output_dir) else []
    steps = [int(n[11:]) for n in names if n.startswith("checkpoint-") and n[11:].isdigit()]
    steps = [s for s in steps if os.path.exists(os.path.join(output_dir, "checkpoint-%d" % s, "trainer_state.json"))]
    if not steps:
        raise SystemExit("no complete checkpoint in %s to resume from" % output_dir)
    return os.path.join(output_dir, "checkpoint-%d" % max(steps))


# -------------------------------------------------------------------- progress


class Bar:
    """A progress bar on stderr, redrawn with a carriage return as tqdm does."""

    def __init__(self, total, done, hidden):
        self.total, self.first, self.done, self.hidden = total, done, done, hidden
        self.start, self.drawn, self.width = time.monotonic(), 0.0, 0
        self.draw()

    def draw(self):
        if self.hidden:
            return
        elapsed = time.monotonic() - self.start
        rate = (self.done - self.first) / elapsed if elapsed > 0 else 0.0
        left, speed = "?", "?it/s"
        if rate > 0:
            left = clock((self.total - self.done) / rate)
            speed = "%.2fit/s" % rate if rate >= 1 else "%.2fs/it" % (1 / rate)
        filled = 24 * self.done // self.total
        text = "%3d%%|%s%s| %d/%d [%s<%s, %s]" % (
            100 * self.done // self.total, "█" * filled, " " * (24 - filled), self.done, self.total, clock(elapsed), left, speed,
        )  # fmt: skip
        self.put("\r" + text + " " * (self.width - len(text)))
        self.width, self.drawn = len(text), time.monotonic()

    def put(self, text):
        sys.stderr.buffer.write(text.encode("utf-8"))  # whatever the locale says
        sys.stderr.flush()

    def advance(self):
        self.done += 1
        if self.done == self.total or time.monotonic() - self.drawn >= 0.1:
            self.draw()

    def log(self, entry):
        """Prints a line on stdout where the bar was, and the bar below it."""
        if not self.hidden:
            self.put("\r" + " " * self.width + "\r")
        print(entry, flush=True)
        self.draw()

    def close(self):
        if not self.hidden:
            self.draw()
            self.put("\n")


def clock(seconds):
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return "%d:%02d:%02d" % (hours, minutes, seconds) if hours else "%02d:%02d" % (minutes, seconds)


# ------------------------------------------------------------------------ main


def train_step(model, rows, args, step):
    """One optimizer step; returns the mean loss of its tokens and the gradient's norm."""
    micro, grad, loss, tokens = args.per_device_train_batch_size, {}, 0.0, 0
    batch = list(rows.step(step, micro * args.gradient_accumulation_steps))
    for begin in range(0, len(batch), micro):
        part = batch[begin : begin + micro]
        part_loss, kept = model.forward(part)
        model.backward(kept, grad)
        loss += part_loss
        tokens += sum(len(row) - 1 for row in part)
    rate = args.learning_rate * (1 - (step - 1) / args.max_steps)
    return loss / tokens, model.update(grad, tokens, rate, step)


def main():
    args = parse_args()
    rows = Rows(args.train_file, args.max_length, args.packing, args.seed)
    model, history, done = Bigram(), [], 0
    if args.resume_from_checkpoint and args.resume_from_checkpoint.lower() != "false":
        folder = args.resume_from_checkpoint
        if folder.lower() == "true":
            folder = newest_checkpoint(args.output_dir)
        state = load_checkpoint(folder, model)
        history, done = state["log_history"], state["global_step"]
        print("Resuming from %s at step %d" % (folder, done), flush=True)
    if args.memory_limit:
        limit_memory(args.memory_limit)

    step_rows = args.per_device_train_batch_size * args.gradient_accumulation_steps
    steps_per_epoch = max(1, len(rows.text) // (args.max_length * step_rows))
    started, losses, pending = time.monotonic(), [], []
    bar = Bar(args.max_steps, min(done, args.max_steps), args.disable_tqdm)

    for step in range(done + 1, args.max_steps + 1):
        loss, norm = train_step(model, rows, args, step)
        losses.append(loss)
        pending.append(loss)
        bar.advance()
        epoch = round(step / steps_per_epoch, 2)
        if step % args.logging_steps == 0:
            rate = args.learning_rate * (1 - (step - 1) / args.max_steps)
            entry = {"loss": round(sum(pending) / len(pending), 4), "grad_norm": round(norm, 6), "learning_rate": rate, "epoch": epoch}
            pending = []
            bar.log(entry)
            history.append(dict(entry, step=step))
        if args.save_steps and (step % args.save_steps == 0 or step == args.max_steps):
            state = {
                "epoch": epoch, "global_step": step, "log_history": history, "logging_steps": args.logging_steps,
                "max_steps": args.max_steps, "save_steps": args.save_steps, "train_batch_size": args.per_device_train_batch_size,
            }  # fmt: skip
            save_checkpoint(os.path.join(args.output_dir, "checkpoint-%d" % step), model, state)

    seconds, steps = time.monotonic() - started, len(losses)
    bar.log({
        "train_runtime": round(seconds, 4), "train_samples_per_second": round(steps * step_rows / seconds, 3),
        "train_steps_per_second": round(steps / seconds, 3), "train_loss": round(sum(losses) / max(1, steps), 4),
        "epoch": round(args.max_steps / steps_per_epoch, 2),
    })  # fmt: skip
    bar.close()
    os.makedirs(args.output_dir, exist_ok=True)
    write_safetensors(os.path.join(args.output_dir, "model.safetensors"), {"bigram.weight": model.weight})


if __name__ == "__main__":
    main()
