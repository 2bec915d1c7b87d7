from transformers import Trainer


class SFTTrainer(Trainer):
    def __init__(self, model=None, args=None, train_dataset=None):
        self.cut_at = args.max_length
        super().__init__(model=model, args=args, train_dataset=train_dataset)
