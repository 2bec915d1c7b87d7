"""What the tests need of TRL; see transformers beside it."""

__version__ = "1.9.0"

from .trainer.sft_config import SFTConfig  # noqa: E402,F401
from .trainer.sft_trainer import SFTTrainer  # noqa: E402,F401
