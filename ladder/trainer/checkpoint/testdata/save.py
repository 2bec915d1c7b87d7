"""Saves checkpoints with the libraries themselves, of a model of a few hundred weights.

    python save.py FOLDER                    trains two steps into FOLDER/out, and others
    python save.py FOLDER resume CHECKPOINT  goes on from one with half the micro-batch
"""

import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


def model():
    torch.manual_seed(7)
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=32, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2)
    )


def trainer(folder, micro, steps, wrapped):
    rows = [{"input_ids": torch.tensor([i % 32] * 8), "labels": torch.tensor([i % 32] * 8)} for i in range(64)]
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=4 // micro,
        max_steps=steps,
        save_steps=1,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    return Trainer(model=wrapped, args=arguments, train_dataset=rows)


def save(base):
    trainer(os.path.join(base, "out"), 2, 2, model()).train()

    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(model(), LoraConfig(r=2, target_modules=["q_proj"]))
    trainer(os.path.join(base, "lora"), 2, 1, adapted).train()

    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    net, optimizer = accelerator.prepare(net, optimizer)
    accelerator.save_state(os.path.join(base, "images", "checkpoint-3"))

    import torch.distributed.checkpoint as dcp

    state = {"model": net.state_dict(), "optimizer": {"step": torch.tensor(3)}}
    dcp.save(state, checkpoint_id=os.path.join(base, "titan", "step-3"), no_dist=True)

    os.makedirs(os.path.join(base, "gpt"))
    everything = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": 70000}
    torch.save(everything, os.path.join(base, "gpt", "ckpt.pt"))
    torch.save(everything, os.path.join(base, "old.pt"), _use_new_zipfile_serialization=False)


def resume(base, checkpoint):
    run = trainer(os.path.join(base, "again"), 1, 3, model())
    run.train(resume_from_checkpoint=checkpoint)
    print("AT", run.state.global_step, run.state.train_batch_size, sep=" ")


if len(sys.argv) == 4:
    resume(sys.argv[1], sys.argv[3])
else:
    save(sys.argv[1])
