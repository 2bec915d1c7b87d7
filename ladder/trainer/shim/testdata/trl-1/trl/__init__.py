"""The shape of today's TRL."""

__version__ = "1.9.0"

from .trainer.dpo_config import DPOConfig  # noqa: E402,F401
from .trainer.grpo_config import GRPOConfig  # noqa: E402,F401
from .trainer.sft_config import SFTConfig  # noqa: E402,F401
from .trainer.sft_trainer import SFTTrainer  # noqa: E402,F401
