#!/usr/bin/env python3
"""A training that saves itself to a volume, is interrupted, and goes on where it was.

python examples/train_and_resume.py /Volumes/main/default/demo/run

The checkpoint has the place in the data too: no file is seen twice in an epoch, none is left out.
"""

import os
import sys
from collections.abc import Iterator

import torch
from torch.utils.data import IterableDataset

from ucfuse.data import DataLoader, UCVolumeDataset

FILE_COUNT, EPOCHS, BATCH = 40, 2, 4
STOP_AFTER = 13  # batches: in the second epoch


class Samples(IterableDataset[torch.Tensor]):
    def __init__(self, paths: UCVolumeDataset) -> None:
        self._paths = paths

    def __iter__(self) -> Iterator[torch.Tensor]:
        for path in self._paths:
            yield torch.load(path, weights_only=True)


class Training:
    """A model, its optimizer and its data; all of it is in the checkpoint."""

    def __init__(self, data: str) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(8, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        paths = UCVolumeDataset(data, shuffle=True, seed=1)
        self.loader = DataLoader(Samples(paths), batch_size=BATCH, num_workers=1)
        self.epoch = 0
        self.losses: list[float] = []

    def run(self, checkpoint: str, stop_after: int | None = None) -> None:
        while self.epoch < EPOCHS:
            self.loader.set_epoch(self.epoch)
            for batch in self.loader:
                self.step(batch)
                if len(self.losses) == stop_after:
                    self.save(checkpoint)
                    return
            self.epoch += 1

    def step(self, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss = (self.model(batch) - batch.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def save(self, path: str) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "data": self.loader.state_dict(),
            "epoch": self.epoch,
            "losses": self.losses,
        }
        torch.save(state, path)  # when this returns, the store has it

    def resume(self, path: str) -> None:
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch, self.losses = state["epoch"], state["losses"]
        self.loader.set_epoch(self.epoch)
        self.loader.load_state_dict(state["data"])


def main(directory: str) -> None:
    data, checkpoint = os.path.join(directory, "data"), os.path.join(directory, "checkpoint.pt")
    os.makedirs(data, exist_ok=True)
    torch.manual_seed(3)
    for number in range(FILE_COUNT):
        torch.save(torch.randn(8), os.path.join(data, f"{number:03}.pt"))

    Training(data).run(checkpoint, stop_after=STOP_AFTER)  # and the machine is taken away
    resumed = Training(data)
    resumed.resume(checkpoint)
    resumed.run(checkpoint)

    # Check: as if nothing had happened.
    undisturbed = Training(data)
    undisturbed.run(checkpoint)
    assert len(resumed.losses) == EPOCHS * FILE_COUNT // BATCH
    assert resumed.losses == undisturbed.losses, "the resumed training took another way"
    print(f"resumed after {STOP_AFTER} of {len(resumed.losses)} batches: the same losses")


if __name__ == "__main__":
    main(*sys.argv[1:])
