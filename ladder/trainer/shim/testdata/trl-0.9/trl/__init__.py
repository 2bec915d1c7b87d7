"""The shape of TRL before it had arguments of its own for every trainer: the length is
a parameter of the trainer."""

__version__ = "0.8.6"

from .trainer.sft_trainer import SFTTrainer  # noqa: E402,F401
