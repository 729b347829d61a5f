#!/usr/bin/env python3
"""Images from a volume: local copies, a wrapper that decodes, a loader. Needs Pillow.

python examples/images.py /Volumes/main/default/demo/pictures
"""

import os
import sys
from collections.abc import Iterator

import torch
from PIL import Image
from torch.utils.data import IterableDataset

from ucfuse.data import DataLoader, UCVolumeDataset

IMAGE_COUNT = 48


class ImageDataset(IterableDataset[tuple[str, torch.Tensor]]):
    """Decodes each local copy that `UCVolumeDataset` gives; it never touches the volume."""

    def __init__(self, paths: UCVolumeDataset) -> None:
        self._paths = paths

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for path in self._paths:
            with Image.open(path) as image:
                shape = (image.height, image.width, 3)
                data = bytearray(image.convert("RGB").tobytes())
            pixels = torch.frombuffer(data, dtype=torch.uint8).reshape(shape)
            yield os.path.basename(path), pixels.permute(2, 0, 1) / 255


def make_images(directory: str) -> None:
    """One colour each: its red says which image it is."""
    os.makedirs(directory, exist_ok=True)
    for number in range(IMAGE_COUNT):
        image = Image.new("RGB", (32, 24), (number, 100, 200))
        image.save(os.path.join(directory, f"{number:03}.png"))


def main(directory: str) -> None:
    make_images(directory)
    images = ImageDataset(UCVolumeDataset(directory, shuffle=True, seed=7))
    loader = DataLoader(images, batch_size=8, num_workers=2)

    for epoch in range(2):  # the second one reads nothing of the volume
        loader.set_epoch(epoch)
        seen = {}
        for names, pixels in loader:
            assert pixels.shape == (len(names), 3, 24, 32)
            seen.update(zip(names, (pixels[:, 0, 0, 0] * 255).round().int().tolist(), strict=True))
        # Check: every image once, and the right one.
        assert sorted(seen.values()) == list(range(IMAGE_COUNT))
        print(f"epoch {epoch}: {len(seen)} images; {loader.stats()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
