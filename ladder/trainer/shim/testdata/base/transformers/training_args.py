import dataclasses
from dataclasses import dataclass
from typing import Any, Optional


@dataclass
class TrainingArguments:
    output_dir: str = "out"
    per_device_train_batch_size: int = 8
    per_device_eval_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    gradient_checkpointing: bool = False
    gradient_checkpointing_kwargs: Optional[dict] = None
    dataloader_num_workers: int = 0
    dataloader_prefetch_factor: Optional[int] = None
    auto_find_batch_size: bool = False
    deepspeed: Any = None
    resume_from_checkpoint: Optional[str] = None
    max_steps: int = -1
    num_train_epochs: float = 3.0
    save_steps: int = 500
    learning_rate: float = 5e-5
    optim: str = "adamw_torch"

    def __post_init__(self):
        self.train_batch_size = self.per_device_train_batch_size

    def to_dict(self):
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
