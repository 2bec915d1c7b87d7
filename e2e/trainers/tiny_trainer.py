"""A script on transformers.Trainer with flags of its own beside TrainingArguments, as the
library's examples are written. The rows become long after a while, so a length that
does not fit is found out late, when there is a checkpoint to go on from.

    python tiny_trainer.py --max_length 4096 --per_device_train_batch_size 2 --max_steps 6 --save_steps 2 ...
"""

import json
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from dataclasses import dataclass, field  # noqa: E402

import torch  # noqa: E402
from torch.utils.data import SequentialSampler  # noqa: E402
from transformers import HfArgumentParser, Trainer, TrainingArguments  # noqa: E402

import make_tiny  # noqa: E402
from tiny_sft import limit_memory  # noqa: E402


@dataclass
class ScriptArguments:
    max_length: int = field(default=1024, metadata={"help": "tokens in a row"})
    short_rows: int = field(default=4, metadata={"help": "how many rows come before the long ones"})
    torn: int = field(default=0, metadata={"help": "leave a half-written checkpoint of this step; 0: none"})
    memory_limit: int = field(default=0, metadata={"help": "MiB of address space on top of what is mapped when training starts; 0: none"})


class InOrder(Trainer):
    def _get_train_sampler(self, *_args, **_kwargs):
        return SequentialSampler(self.train_dataset)


def rows(tokenizer, script):
    texts = make_tiny.text_rows(count=32)
    out = []
    for i, text in enumerate(texts):
        length = 64 if i < script.short_rows else script.max_length
        ids = tokenizer(text, truncation=True, max_length=length)["input_ids"]
        out.append({"input_ids": ids, "labels": ids})
    return out


def main():
    script, args = HfArgumentParser((ScriptArguments, TrainingArguments)).parse_args_into_dataclasses()
    tokenizer = make_tiny.make_tokenizer()
    trainer = InOrder(
        model=make_tiny.make_model(tokenizer),
        args=args,
        train_dataset=rows(tokenizer, script),
        data_collator=lambda batch: {k: torch.tensor([r[k] for r in batch]) for k in batch[0]},
    )
    if script.torn:
        # What a kill in the middle of saving leaves behind.
        torn = os.path.join(args.output_dir, f"checkpoint-{script.torn}")
        os.makedirs(torn, exist_ok=True)
        with open(os.path.join(torn, "model.safetensors"), "w") as f:
            f.write("torn")
    torch.ones(256, 256) @ torch.ones(256, 256)  # from here on its threads and their stacks exist
    if script.memory_limit:
        limit_memory(script.memory_limit)
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    with open(os.path.join(args.output_dir, "script.json"), "w") as f:
        json.dump({"max_length": script.max_length, "resumed": args.resume_from_checkpoint}, f)


if __name__ == "__main__":
    main()
