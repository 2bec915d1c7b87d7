"""What the tests need of transformers: arguments, a trainer that takes real memory and
saves real checkpoints. Written for them; nothing of the library is in it."""

__version__ = "4.57.0"

import torch  # noqa: E402,F401

from .training_args import TrainingArguments  # noqa: E402,F401
from .trainer import Trainer  # noqa: E402,F401
from .modeling_utils import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel  # noqa: E402,F401
