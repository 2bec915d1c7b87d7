from dataclasses import dataclass
from typing import Any, Optional


@dataclass
class TrainingArguments:
    output_dir: str = "trainer_output"
    per_device_train_batch_size: int = 8
    per_device_eval_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    gradient_checkpointing: bool = False
    auto_find_batch_size: bool = False
    deepspeed: Any = None
    resume_from_checkpoint: Optional[str] = None
    max_steps: int = 4
    logging_steps: int = 1
    save_steps: int = 0
    learning_rate: float = 5e-5
    optim: str = "adamw_torch"

    def __post_init__(self):
        pass
