#!/usr/bin/env python3
"""One process: torch.save and torch.load straight to and from a volume.

python examples/checkpoint_torch_save.py /Volumes/main/default/demo/single
"""

import os
import sys

import torch


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    return model, torch.optim.AdamW(model.parameters())


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()


def main(directory: str) -> None:
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, "ckpt.pt")
    model, optimizer = build()
    train(model, optimizer)

    # Save. When torch.save returns, the store has the file.
    torch.save({"model": model.state_dict(), "opt": optimizer.state_dict()}, path)

    # Load, into a model that knows nothing of the first one.
    device = "cuda" if torch.cuda.is_available() else "cpu"
    resumed, resumed_optimizer = build()
    ckpt = torch.load(path, map_location=device, weights_only=True)
    resumed.load_state_dict(ckpt["model"])
    resumed_optimizer.load_state_dict(ckpt["opt"])

    # Check: both go on in the same way.
    for each in (model, resumed), (optimizer, resumed_optimizer):
        before, after = (part.state_dict() for part in each)
        assert str(before) == str(after), f"{type(each[0]).__name__} came back changed"
    for original, loaded in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(original, loaded)
    print(f"saved and loaded: {path}, {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
