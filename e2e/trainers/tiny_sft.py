"""A supervised fine-tuning as people write it with TRL, on a model of a few thousand
weights. With --memory_limit it runs into a real allocation error of torch's own.

    python tiny_sft.py --max_length 4096 --per_device_train_batch_size 2 --memory_limit 900 ...
"""

import os

# The hub is not reachable here and nothing is wanted from it.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import resource  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from trl import SFTConfig, SFTTrainer, TrlParser  # noqa: E402

import make_tiny  # noqa: E402


@dataclass
class TinyArguments:
    memory_limit: int = field(default=0, metadata={"help": "MiB of address space on top of what is mapped when training starts; 0: none"})


def limit_memory(mib):
    """torch and its CUDA libraries have mapped some 5 GB by now, so only a limit on top
    of that says anything about the training."""
    with open("/proc/self/statm") as f:
        mapped = int(f.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (mapped + (mib << 20), hard))


def main():
    tiny, training_args = TrlParser((TinyArguments, SFTConfig)).parse_args_and_config()
    tokenizer = make_tiny.make_tokenizer()
    trainer = SFTTrainer(
        model=make_tiny.make_model(tokenizer),
        args=training_args,
        train_dataset=Dataset.from_dict({"text": make_tiny.text_rows()}),
        processing_class=tokenizer,
    )
    torch.ones(256, 256) @ torch.ones(256, 256)  # from here on its threads and their stacks exist
    if tiny.memory_limit:
        limit_memory(tiny.memory_limit)
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # else gloo's threads abort at times


if __name__ == "__main__":
    main()
