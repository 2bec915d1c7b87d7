import json
import os
import resource
import struct
import zipfile

# Bytes that a token of a step costs.
TOKEN = 16 << 10


def limit(mib):
    """Gives the process as much writable memory as it has now, and mib on top. Address
    space would not do: a thread that comes and goes reserves 72 MiB of it."""
    with open("/proc/self/statm") as f:
        now = int(f.read().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (now + (mib << 20), resource.RLIM_INFINITY))


class Trainer:
    def __init__(self, model=None, args=None, train_dataset=None, **kwargs):
        self.model, self.args = model, args
        self.length = 1024

    def train(self, resume_from_checkpoint=None):
        args, step, rows = self.args, 0, self.args.per_device_train_batch_size
        if resume_from_checkpoint:
            with open(os.path.join(resume_from_checkpoint, "trainer_state.json")) as f:
                state = json.load(f)
            step = state["global_step"]
            rows = state["train_batch_size"]  # as the library did up to 5.1
        with open("starts.jsonl", "a") as f:
            json.dump(
                {
                    "length": self.length,
                    "micro": rows,
                    "asked_micro": args.per_device_train_batch_size,
                    "accumulation": args.gradient_accumulation_steps,
                    "quantised": getattr(self.model, "quantised", None),
                    "dtype": getattr(self.model, "dtype", None),
                    "output_dir": args.output_dir,
                    "resumed": resume_from_checkpoint,
                    "from_step": step,
                    "attempt": os.environ.get("SPARKRUN_ATTEMPT"),
                    "rung": os.environ.get("SPARKRUN_RUNG"),
                    "wandb": os.environ.get("WANDB_RUN_ID"),
                },
                f,
            )
            f.write("\n")
        while step < args.max_steps:
            self.training_step(step, rows)
            step += 1
            print({"loss": round(3 - step / 10, 3), "grad_norm": 1.0, "learning_rate": 1e-4, "epoch": step / 10}, flush=True)
            if args.save_steps and step % args.save_steps == 0:
                self.save(step, rows)

    def training_step(self, step, rows):
        for _ in range(self.args.gradient_accumulation_steps):
            activations = bytearray(rows * self.length * TOKEN)
            del activations

    def save(self, step, rows):
        folder = os.path.join(self.args.output_dir, "checkpoint-%d" % step)
        os.makedirs(folder, exist_ok=True)
        header = json.dumps({"w": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
        with open(os.path.join(folder, "model.safetensors"), "wb") as f:
            f.write(struct.pack("<Q", len(header)) + header + bytes(8))
        with zipfile.ZipFile(os.path.join(folder, "optimizer.pt"), "w") as z:
            z.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
            z.writestr("archive/version", b"3\n")
        with open(os.path.join(folder, "trainer_state.json"), "w") as f:
            json.dump({"global_step": step, "train_batch_size": rows, "max_steps": self.args.max_steps}, f)
