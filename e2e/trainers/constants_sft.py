"""A fine-tuning as most people write it: every value stands in the code, none on the
command line. Quantised LoRA with TRL on a model of a few thousand weights.

    LIMIT_MIB=700 python constants_sft.py

LIMIT_MIB, if set, is address space on top of what is mapped when the training starts:
the allocation errors are torch's own. Whether the settings in force are those of the
code shows in settings.jsonl: a line for each start.
"""

import json
import os

import hangup

hangup.name_the_sender()

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from peft import LoraConfig  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig  # noqa: E402
from trl import SFTConfig, SFTTrainer  # noqa: E402

import make_tiny  # noqa: E402
from tiny_sft import limit_memory  # noqa: E402

MODEL = "model"


def main():
    model = AutoModelForCausalLM.from_pretrained(
        MODEL,
        quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32),
        attn_implementation="eager",
    )
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            output_dir="out",
            max_length=4096,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=1,
            max_steps=2,
            logging_steps=1,
            save_steps=1,
            report_to="none",
            use_cpu=True,
            bf16=False,
        ),
        train_dataset=Dataset.from_dict({"text": make_tiny.text_rows(count=16)}),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"]),
    )
    with open("settings.jsonl", "a") as f:
        json.dump(
            {
                "max_length": trainer.args.max_length,
                "micro_batch": trainer.args.per_device_train_batch_size,
                "accumulation": trainer.args.gradient_accumulation_steps,
                "quantised": bool(getattr(trainer.model, "is_loaded_in_4bit", False)),
                "dtype": str(next(p.dtype for n, p in trainer.model.named_parameters() if "lora" not in n)),
                "output_dir": trainer.args.output_dir,
            },
            f,
        )
        f.write("\n")
    torch.ones(256, 256) @ torch.ones(256, 256)  # from here on its threads and their stacks exist
    if os.environ.get("LIMIT_MIB"):
        limit_memory(int(os.environ["LIMIT_MIB"]))
    trainer.train()


if __name__ == "__main__":
    main()
