#!/usr/bin/env python3
"""Several ranks: rank 0 saves with torch.save, all ranks meet, all ranks load.

torchrun --standalone --nproc-per-node=2 \
    examples/checkpoint_torchrun.py /Volumes/main/default/demo/ranks
"""

import os
import sys

import torch
import torch.distributed as dist


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    return model, optimizer


def main(directory: str) -> None:
    torch.manual_seed(int(os.environ["RANK"]))  # ranks begin with different weights
    # Before there is a process group: what the first optimizer imports would hold on to it, and its
    # threads would run on while the interpreter ends, which can abort the rank.
    model, optimizer = build()
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    path = os.path.join(directory, "ckpt.pt")

    # Save only on rank 0.
    if dist.get_rank() == 0:
        os.makedirs(directory, exist_ok=True)
        torch.save({"model": model.state_dict(), "opt": optimizer.state_dict()}, path)

    # Wait for rank 0 to finish writing before any rank reads.
    dist.barrier()

    # Load on ALL ranks (map to the current rank's local GPU, if it has one).
    local_rank = int(os.environ["LOCAL_RANK"])
    device = f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu"
    ckpt = torch.load(path, map_location=device, weights_only=True)
    model.load_state_dict(ckpt["model"])
    optimizer.load_state_dict(ckpt["opt"])

    # Check: all ranks have the weights of rank 0.
    for name, tensor in model.state_dict().items():
        of_rank_0 = tensor.clone()
        dist.broadcast(of_rank_0, src=0)
        assert torch.equal(tensor, of_rank_0), f"rank {dist.get_rank()}: {name} differs"
    print(f"rank {dist.get_rank()} loaded {path}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
