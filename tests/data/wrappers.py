"""Wrappers as users write them. A spawned worker imports them from here."""

import os
from collections.abc import Iterable, Iterator

import torch
from PIL import Image
from torch.utils.data import IterableDataset

__all__ = ["Decoded", "Endless", "Filtered", "Greys", "Halved", "Picky"]


class Decoded(IterableDataset[tuple[str, torch.Tensor]]):
    """Decodes each path to its name and first bytes; keeps the dataset in an attribute."""

    def __init__(self, path_dataset: Iterable[str]) -> None:
        self._path_dataset = path_dataset

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for path in self._path_dataset:
            with open(path, "rb") as file:
                yield os.path.basename(path), torch.tensor(list(file.read(8)))


class Filtered(IterableDataset[tuple[str, torch.Tensor]]):
    """A second wrapper around the first; leaves out names with an odd number."""

    def __init__(self, inner: Decoded) -> None:
        self.parts = {"inner": [inner]}

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self.parts["inner"][0]:
            if int(name[1:5]) % 2 == 0:
                yield name, tensor


class Endless(IterableDataset[str]):
    """Begins the dataset again and again within one pass."""

    def __init__(self, inner: Iterable[str]) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[str]:
        while True:
            yield from self.inner


class Picky(IterableDataset[str]):
    """Fails at one file."""

    def __init__(self, inner: Iterable[str], bad: str) -> None:
        self.inner = inner
        self.bad = bad

    def __iter__(self) -> Iterator[str]:
        for path in self.inner:
            if path.endswith(self.bad):
                raise ValueError(path)
            yield path


class Greys(IterableDataset[torch.Tensor]):
    """Decodes each path, an image, to its grey values."""

    def __init__(self, path_dataset: Iterable[str]) -> None:
        self._path_dataset = path_dataset

    def __iter__(self) -> Iterator[torch.Tensor]:
        for path in self._path_dataset:
            with Image.open(path) as image:
                pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
                yield pixels.view(image.height, image.width)


class Halved(IterableDataset[torch.Tensor]):
    """A wrapper around a wrapper, as an augmentation is."""

    def __init__(self, images: Iterable[torch.Tensor]) -> None:
        self._images = images

    def __iter__(self) -> Iterator[torch.Tensor]:
        for image in self._images:
            yield image / 2
