"""A training with LightningCLI: model and data with their own settings, in a YAML file
or on the command line.

    python tiny_lightning.py fit --config fit.yaml

One layer of attention over rows of data.seq_len numbers; its memory grows with the
square of that, and LIMIT_MIB bounds it as in constants_sft.py.
"""

import os

import lightning as L
import torch
from lightning.pytorch.cli import LightningCLI
from torch.utils.data import DataLoader, TensorDataset

from tiny_sft import limit_memory


class TinyModel(L.LightningModule):
    def __init__(self, width: int = 16):
        super().__init__()
        self.query = torch.nn.Linear(width, width)
        self.out = torch.nn.Linear(width, 1)
        self.width = width

    def on_train_start(self):
        torch.ones(256, 256) @ torch.ones(256, 256)
        if os.environ.get("LIMIT_MIB"):
            limit_memory(int(os.environ["LIMIT_MIB"]))

    def training_step(self, batch, _):
        x = batch[0].unsqueeze(-1).expand(-1, -1, self.width)
        q = self.query(x)
        weights = (q @ q.transpose(1, 2)).softmax(-1)
        loss = self.out(weights @ x).pow(2).mean()
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class TinyData(L.LightningDataModule):
    def __init__(self, batch_size: int = 8, seq_len: int = 2048):
        super().__init__()
        self.batch_size, self.seq_len = batch_size, seq_len

    def train_dataloader(self):
        torch.manual_seed(7)
        return DataLoader(TensorDataset(torch.randn(64, self.seq_len)), batch_size=self.batch_size)


if __name__ == "__main__":
    LightningCLI(TinyModel, TinyData, save_config_kwargs={"overwrite": True})
