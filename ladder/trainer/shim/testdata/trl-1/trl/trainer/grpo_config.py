from dataclasses import dataclass
from typing import Optional

from transformers import TrainingArguments


@dataclass
class GRPOConfig(TrainingArguments):
    num_generations: Optional[int] = 8
    max_prompt_length: Optional[int] = 512
