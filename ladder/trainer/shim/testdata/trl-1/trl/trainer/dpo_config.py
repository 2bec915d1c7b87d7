from dataclasses import dataclass
from typing import Optional

from transformers import TrainingArguments


@dataclass
class DPOConfig(TrainingArguments):
    max_length: Optional[int] = 1024
    max_prompt_length: Optional[int] = 512
