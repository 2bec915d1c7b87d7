"""What the shim meets of transformers, in a few lines."""

__version__ = "4.50.0"

from .training_args import TrainingArguments  # noqa: E402,F401
from .trainer import Trainer  # noqa: E402,F401
from .modeling_utils import PreTrainedModel  # noqa: E402,F401
from .tokenization_utils_base import PreTrainedTokenizerBase  # noqa: E402,F401
