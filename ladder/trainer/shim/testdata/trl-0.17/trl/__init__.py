"""The shape of TRL while it had both names of the length, the older one deprecated."""

__version__ = "0.17.0"

from .trainer.sft_config import SFTConfig  # noqa: E402,F401
from .trainer.sft_trainer import SFTTrainer  # noqa: E402,F401
