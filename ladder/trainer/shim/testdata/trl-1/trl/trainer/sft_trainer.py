from transformers import Trainer

from .sft_config import SFTConfig


class SFTTrainer(Trainer):
    def __init__(self, model=None, args=None, train_dataset=None, processing_class=None):
        if not isinstance(args, SFTConfig):
            args = SFTConfig(**args.to_dict())
        self.cut_at = args.max_length
        super().__init__(model=model, args=args, train_dataset=train_dataset)
