from transformers import Trainer


class SFTTrainer(Trainer):
    def __init__(self, model=None, args=None, train_dataset=None, processing_class=None, peft_config=None):
        super().__init__(model=model, args=args, train_dataset=train_dataset)
        self.length = args.max_length
