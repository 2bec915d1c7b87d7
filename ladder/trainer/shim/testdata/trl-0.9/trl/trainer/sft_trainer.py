from transformers import Trainer


class SFTTrainer(Trainer):
    def __init__(self, model=None, args=None, train_dataset=None, packing=False, max_seq_length=None, max_prompt_length=None):
        self.max_seq_length, self.max_prompt_length, self.packing = max_seq_length, max_prompt_length, packing
        super().__init__(model=model, args=args, train_dataset=train_dataset)
