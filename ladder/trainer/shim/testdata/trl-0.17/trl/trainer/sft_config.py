from dataclasses import dataclass
from typing import Optional

from transformers import TrainingArguments


@dataclass
class SFTConfig(TrainingArguments):
    max_length: Optional[int] = 1024
    packing: bool = False
    max_seq_length: Optional[int] = None

    def __post_init__(self):
        super().__post_init__()
        if self.max_seq_length is not None:
            self.max_length = self.max_seq_length
