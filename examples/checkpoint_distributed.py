#!/usr/bin/env python3
"""Distributed checkpoints (torch.distributed.checkpoint), in one process or under torchrun.

python examples/checkpoint_distributed.py /Volumes/main/default/demo/steps
torchrun --standalone --nproc-per-node=2 examples/checkpoint_distributed.py DIRECTORY
"""

import os
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from ucfuse.data import UCVolumeReader, UCVolumeWriter, latest_complete, prune, verify


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    return model, torch.optim.AdamW(model.parameters())


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(16, 64)).square().mean().backward()
    optimizer.step()


def main(directory: str) -> None:
    warnings.simplefilter("ignore")
    if "LOCAL_RANK" in os.environ:
        dist.init_process_group("gloo")
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    model, optimizer = build()

    # Save every few steps. The training goes on while a checkpoint is written; the next save waits
    # for it, and raises if it failed.
    for step in range(1, 31):
        train(model, optimizer)
        if step % 10 == 0:
            model_sd, optim_sd = get_state_dict(model, optimizer)
            state_dict = {"model": model_sd, "optim": optim_sd, "step": step}
            dcp.async_save(
                state_dict, storage_writer=UCVolumeWriter(os.path.join(directory, f"step_{step}"))
            )
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    # Load into a model that knows nothing of the first one. This waits for the last save too.
    model, optimizer = build()
    model_sd, optim_sd = get_state_dict(model, optimizer)
    state_dict = {"model": model_sd, "optim": optim_sd, "step": 0}
    last = os.path.join(directory, "step_30")
    dcp.load(state_dict, storage_reader=UCVolumeReader(last))
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state_dict["model"],
        optim_state_dict=state_dict["optim"],
    )

    # Check.
    assert state_dict["step"] == 30
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected[name]), f"{name} came back changed"
    if dist.is_initialized():
        dist.barrier()
    if is_first:
        assert latest_complete(directory) == last
        verify(last)  # reads all of it; raises if anything is missing or damaged
        prune(directory, keep=2)
        left = [name for name in os.listdir(directory) if name.startswith("step_")]
        assert sorted(left) == ["step_20", "step_30"]
        print(f"saved, loaded, verified: {last}")
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
