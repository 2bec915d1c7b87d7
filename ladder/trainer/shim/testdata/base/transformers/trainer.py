class Trainer:
    def __init__(self, model=None, args=None, train_dataset=None, **kwargs):
        self.model, self.args, self.extra = model, args, kwargs
        self.made_with = (args.per_device_train_batch_size, args.gradient_accumulation_steps)

    def train(self, resume_from_checkpoint=None, trial=None):
        self.resumed_from = resume_from_checkpoint
        return resume_from_checkpoint
