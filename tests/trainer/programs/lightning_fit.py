"""A Lightning module and its Trainer, which wants settings of its own."""

import argparse
import warnings
from datetime import timedelta

import lightning
import probe  # noqa: F401
import torch
from lightning.pytorch.strategies import DDPStrategy
from parts import Net, Points
from torch import nn

warnings.filterwarnings("ignore", message=".*does not have many workers.*")


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        points, answers = batch
        return nn.functional.cross_entropy(self.net(points), answers)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--checkpoints", action="store_true")
options = parser.parse_args()
torch.manual_seed(0)
trainer = lightning.Trainer(
    accelerator="auto",
    strategy=DDPStrategy(find_unused_parameters=True, bucket_cap_mb=10, timeout=timedelta(seconds=300)),
    max_epochs=options.epochs,
    accumulate_grad_batches=2,
    logger=False,
    enable_checkpointing=options.checkpoints,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Module(), torch.utils.data.DataLoader(Points(), batch_size=8, shuffle=True))
