"""The shape of unsloth: it puts functions and classes of its own in the place of other
libraries' when it is imported."""

__version__ = "2026.8.1"

import inspect

import transformers
import trl
import trl.trainer.sft_trainer

from .models.loader import FastLanguageModel  # noqa: F401

# It makes its own from the source, so that has to be readable.
assert "train_dataset" in inspect.getsource(trl.SFTTrainer.__init__)
assert "args" in inspect.signature(trl.SFTTrainer.__init__).parameters


def _init(self, model=None, args=None, train_dataset=None, **kwargs):
    self.model, self.args, self.by_unsloth = model, args, True
    self.made_with = (args.per_device_train_batch_size, args.gradient_accumulation_steps)


transformers.Trainer.__init__ = _init


class UnslothSFTTrainer(trl.SFTTrainer):
    def __init__(self, model=None, args=None, **kwargs):
        longest = getattr(model, "max_seq_length", None)
        if longest is not None and args.max_length > longest:
            args.max_length = longest
        super().__init__(model=model, args=args, **kwargs)


trl.SFTTrainer = trl.trainer.sft_trainer.SFTTrainer = UnslothSFTTrainer
