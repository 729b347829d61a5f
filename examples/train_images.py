#!/usr/bin/env python3
"""Train a small model on the images of a directory, on a volume or anywhere, and resume.

    train_images.py DIRECTORY [--epochs 2] [--workers 2] [--state FILE]

The label of an image is the directory that it lies in: DIRECTORY/cats/1.png is one of `cats`. Needs
the extra `data`, and pillow. With --state, training goes on where that file says, in mid-epoch too,
and writes it after every batch. Under torchrun every rank trains on its share of the files.
"""

import argparse
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import IterableDataset

from ucfuse.data import DataLoader, UCVolumeDataset

SIDE = 32


class Images(IterableDataset[tuple[torch.Tensor, str]]):
    """Pixels (3 x SIDE x SIDE, from 0 to 1) and label of each path."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = paths

    def __iter__(self) -> Iterator[tuple[torch.Tensor, str]]:
        for path in self.paths:
            with Image.open(path) as image:
                small = image.convert("RGB").resize((SIDE, SIDE))
            pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
            label = os.path.basename(os.path.dirname(path))
            yield pixels.view(SIDE, SIDE, 3).permute(2, 0, 1) / 255, label


class Training:
    """Model, optimizer and loader, saved together."""

    def __init__(self, directory: str, workers: int) -> None:
        self.classes = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())
        if not self.classes:
            raise SystemExit(f"{directory}: has no directory for a class; put images into some")
        self.model = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(3 * SIDE**2, len(self.classes))
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        paths = UCVolumeDataset(directory, recursive=True, pattern="*.png", shuffle=True)
        self.loader = DataLoader(Images(paths), batch_size=16, num_workers=workers)
        self.epoch = 0
        self.image_count = 0

    def run_epoch(self, state: Path | None) -> list[float]:
        """Train on what is left of the epoch and return the loss of each batch."""
        losses = []
        for pixels, labels in self.loader:
            wanted = torch.tensor([self.classes.index(label) for label in labels])
            loss = torch.nn.functional.cross_entropy(self.model(pixels), wanted)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
            self.image_count += len(labels)
            self.save(state)
        self.epoch += 1
        self.save(state)
        return losses

    def save(self, state: Path | None) -> None:
        """Write everything that `load` needs."""
        if state is not None:
            parts = {"model": self.model.state_dict(), "loader": self.loader.state_dict()}
            torch.save(parts | {"epoch": self.epoch}, state)

    def load(self, state: Path) -> None:
        """Go on where the file says."""
        saved = torch.load(state, weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.loader.load_state_dict(saved["loader"])
        self.epoch = saved["epoch"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--state", type=Path)
    options = parser.parse_args()
    training = Training(options.directory, options.workers)
    if options.state is not None and options.state.exists():
        training.load(options.state)
    while training.epoch < options.epochs:
        losses = training.run_epoch(options.state)
        print(f"epoch {training.epoch}: {len(losses)} batches, loss of the last {losses[-1:]}")
    stats = training.loader.stats()
    print(stats)

    # Check: the model has seen every image that was handed out, once.
    assert training.image_count == stats["files"], f"{training.image_count} images were seen"


if __name__ == "__main__":
    main()
