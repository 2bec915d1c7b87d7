class Trainer:
    def __init__(self, accumulate_grad_batches=1, callbacks=()):
        self.accumulate_grad_batches, self.callbacks = accumulate_grad_batches, list(callbacks)

    def fit(self, model, train_dataloaders=None, val_dataloaders=None, datamodule=None, ckpt_path=None):
        self.ckpt_path = ckpt_path
        self.loader = train_dataloaders if train_dataloaders is not None else model.train_dataloader()
