"""A training loop with Hugging Face Accelerate, as its documentation has it. It knows nothing of DDPJob."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--steps", type=int, default=20)
    wanted = arguments.parse_args()

    torch.manual_seed(0)
    inputs = torch.randn(4096, 32)
    data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    accelerator = Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for step, (batch, target) in enumerate(data):
        if step == wanted.steps:
            break
        loss = nn.functional.mse_loss(model(batch), target)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.print(f"processes {accelerator.num_processes}, steps {wanted.steps}, loss {loss.item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
