from dataclasses import dataclass
from typing import Optional

from transformers import TrainingArguments


@dataclass
class SFTConfig(TrainingArguments):
    max_length: Optional[int] = 1024
    packing: bool = False
