"""Images decoded with Pillow behind the loader, and the example that trains on them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from ucfuse.data import DataLoader, UCVolumeDataset

from .test_processes import ROOT
from .wrappers import Greys, Halved

SIDE = 8
COUNT = 40


@pytest.fixture
def images(volume_dir: Path) -> Path:
    """Images of one grey each, of which each has its own, below two directories."""
    for number in range(COUNT):
        path = volume_dir / ("even" if number % 2 == 0 else "odd") / f"{number:03}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("L", (SIDE, SIDE), number).save(path)
    return volume_dir


@pytest.mark.parametrize("workers", [0, 2])
def test_images_are_decoded_by_chained_wrappers(
    images: Path, cache_dir: Path, workers: int
) -> None:
    paths = UCVolumeDataset(images, recursive=True, cache_dir=cache_dir, shuffle=True)
    loader = DataLoader(Halved(Greys(paths)), batch_size=7, num_workers=workers)
    for _ in range(2):
        batches = list(loader)
        assert all(batch.shape[1:] == (SIDE, SIDE) for batch in batches)
        pixels = torch.cat(batches)
        assert sorted(pixels[:, 0, 0].tolist()) == [number / 2 for number in range(COUNT)]
        assert bool((pixels == pixels[:, :1, :1]).all())


def test_the_example_trains_and_goes_on_where_it_stopped(images: Path, tmp_path: Path) -> None:
    state = tmp_path / "state.pt"

    def train(epochs: int) -> list[str]:
        example = ROOT / "examples" / "train_images.py"
        options = ("--state", str(state), "--epochs", str(epochs), "--workers", "0")
        done = subprocess.run(
            [sys.executable, str(example), str(images), *options],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [line.partition(",")[0] for line in done.stdout.splitlines()[:-1]]

    assert train(1) == ["epoch 1: 3 batches"]
    assert train(2) == ["epoch 2: 3 batches"]
    saved = torch.load(state, weights_only=True)
    assert saved["loader"]["sources"][0]["epoch"] == 2
