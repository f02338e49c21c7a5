"""Trains the networks of the accuracy suite in float: `python -m bench.suite.train [NAME...]`, minutes on a CPU."""

from __future__ import annotations

import sys

import torch
from safetensors.torch import save_file

from bench.suite.tasks import TASKS, WEIGHTS, inputs, trained

BATCH = 32


def train(name: str) -> None:
    """Trains a network, writes its weights as float16, and prints its score on held out data."""
    torch.manual_seed(0)
    task = TASKS[name]
    assert task.loss is not None and task.measure is not None, f"{name} is measured with random weights"
    module = task.build().train()
    optimizer = torch.optim.AdamW(module.parameters(), 3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=task.steps)
    for step in range(task.steps):
        x, y = inputs(name, False, BATCH, seed=step)
        optimizer.zero_grad()
        loss: torch.Tensor = task.loss(module(*x), torch.from_numpy(y))
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
    state = {key: v.half() if v.is_floating_point() else v for key, v in module.state_dict().items()}
    save_file(state, WEIGHTS / f"{name}.safetensors")
    x, y = inputs(name, True, task.test)
    with torch.no_grad():
        found = trained(name)(*x).numpy()
    print(f"{name}: {task.measure(found, y):.2f} {task.unit}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for wanted in sys.argv[1:] or [name for name, task in TASKS.items() if task.loss]:
        train(wanted)
