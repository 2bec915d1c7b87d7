"""Training loops without a Trainer of transformers.

Such a script knows its batch and its accumulation itself, and works out its steps and its
schedule from them and from the length of its loader: with one of the three changed behind
its back it trains something else. So accumulation is never touched here, and a loader's
batch only where the user allows a smaller batch: then the script sees it everywhere, has as
many more steps as its loader is longer, and its schedule fits them.
"""

import os

from . import arguments, record, wrapping

# Code of these makes loaders and accelerators for its own trainer.
LIBRARIES = {
    "torch", "transformers", "trl", "unsloth", "unsloth_zoo", "accelerate", "peft", "datasets", "lightning",
    "pytorch_lightning", "sentence_transformers", "llamafactory", "deepspeed", "swift", "axolotl",
}

# The places of a loop's own batch and accumulation; shim.OwnLoop knows them too.
BATCH = "DataLoader(batch_size=)"
ACCUMULATION = "Accelerator(gradient_accumulation_steps=)"
LIGHTNING = "Trainer.accumulate_grad_batches"

OWN = "the script works out its steps and its schedule from its own batch and accumulation, which another split would not fit (--allow smaller-batch lowers the batch alone)"


def by_script():
    return wrapping.caller() not in LIBRARIES


def accelerate(plan, module):
    def before(call):
        if by_script():
            told(plan, ACCUMULATION, call.get("gradient_accumulation_steps"))

    wrapping.wrap(module.Accelerator, "__init__", before)


def told(plan, where, value):
    why = OWN if plan.wants("accumulation") else ""
    record.seen("accumulation", where, value, value, why=why)


def dataloader(plan, module):
    cls = module.DataLoader

    def before(call):
        if type(call.args[0]) is not cls or call.get("batch_sampler") is not None:
            return
        size = call.get("batch_size")
        if not isinstance(size, int) or isinstance(size, bool) or not by_script():
            return
        new, why = loader_batch(plan, size)
        if new != size:
            call.set("batch_size", new)
        record.seen("micro_batch", BATCH, size, new, why=why)

    wrapping.wrap(cls, "__init__", before)


def loader_batch(plan, size):
    """The batch of a loader that the script makes, and why it is the script's own."""
    if not plan.wants("micro_batch"):
        return size, ""
    if arguments.batch_turned:
        return size, "the values come from arguments that were changed already"
    if not plan.smaller_batch or plan.wants("accumulation"):
        return size, OWN
    return plan.batch(size, 1)[0], ""


def lightning(plan, module):
    def before(call):
        told(plan, LIGHTNING, getattr(call.args[0], "accumulate_grad_batches", None))
        to = plan.to("resume_from")
        if to is None or not call.takes("ckpt_path"):
            return
        if os.path.exists(to):
            record.seen("resume_from", "Trainer.fit(ckpt_path=)", call.get("ckpt_path"), to, True)
            call.set("ckpt_path", to)
        else:
            record.trouble("the checkpoint %s cannot be seen from the training: it starts as the script says" % to)

    wrapping.wrap(module.Trainer, "fit", before)
