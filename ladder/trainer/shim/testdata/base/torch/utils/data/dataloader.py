class BatchSampler:
    def __init__(self, batch_size):
        self.batch_size = batch_size


class DataLoader:
    def __init__(self, dataset, batch_size=1, shuffle=None, sampler=None, batch_sampler=None):
        self.batch_size = batch_size
        self.batch_sampler = batch_sampler or BatchSampler(batch_size)
        self.done = True

    def __setattr__(self, name, value):
        if getattr(self, "done", False) and name == "batch_size":
            raise ValueError("batch_size cannot be set once the loader is made")
        super().__setattr__(name, value)
