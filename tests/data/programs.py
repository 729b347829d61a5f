"""Programs that the data tests run as processes of their own.

python -m tests.data.programs exactly-once VOLUME CACHE OUT WORKERS:METHOD ...
python -m tests.data.programs read VOLUME [CACHE [LIMIT]]
python -m tests.data.programs endless VOLUME WORKERS
python -m tests.data.programs as-nobody VOLUME CACHE
torchrun ... -m tests.data.programs distributed VOLUME CACHE OUT
"""

import json
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from ucfuse.data import DataLoader, UCVolumeDataset

from .wrappers import Decoded

EPOCHS = 2
READ_WORKERS = 2


def read_epochs(volume: str, cache: str, workers: int, method: str | None) -> list[list[str]]:
    """Return the names that this rank received in each epoch."""
    dataset = UCVolumeDataset(volume, cache_dir=cache, shuffle=True, uneven="strict")
    loader = DataLoader(
        Decoded(dataset),
        4,
        num_workers=workers,
        multiprocessing_context=method if workers else None,
    )
    return [[name for names, _ in loader for name in names] for _ in range(EPOCHS)]


def exactly_once(volume: str, cache: str, out: str, *grids: str) -> None:
    """Read all epochs with each of the given numbers of workers and start methods."""
    results = {}
    for grid in grids:
        workers, _, method = grid.partition(":")
        results[grid] = read_epochs(volume, cache, int(workers), method or None)
    (Path(out) / f"{os.environ['RANK']}.json").write_text(json.dumps(results))


def distributed(volume: str, cache: str, out: str) -> None:
    """Be one rank of a process group; what the environment says of ranks is gone by then."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for name in ("RANK", "WORLD_SIZE"):
        del os.environ[name]
    results = {"2:spawn": read_epochs(volume, cache, 2, "spawn")}
    (Path(out) / f"{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def say(line: str) -> None:
    """Tell the test that started this program."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def read(volume: str, cache: str | None = None, limit: str = "") -> None:
    """Read through workers; print their pids, then each file's name as it comes.

    It and its workers stay until standard input ends, so that a test can kill any of them.
    """
    limit_bytes = int(limit) if limit else None
    dataset = UCVolumeDataset(volume, cache_dir=cache, cache_bytes=limit_bytes)
    say(dataset.cache_dir)
    loader = DataLoader(
        dataset,
        1,
        num_workers=READ_WORKERS,
        multiprocessing_context="fork",
        persistent_workers=True,
    )
    batches = iter(loader)
    say(" ".join(str(child.pid) for child in multiprocessing.active_children()))
    for (path,) in batches:
        say(os.path.basename(path))
    sys.stdin.read()


def endless(volume: str, workers: str) -> None:
    """Read epoch after epoch; say so for each batch."""
    loader = DataLoader(UCVolumeDataset(volume), 8, num_workers=int(workers))
    while True:
        for _ in loader:
            say("batch")


def as_nobody(volume: str, cache: str) -> None:
    """Print the paths that a user gets who has no rights in the cache."""
    logging.basicConfig()
    list(UCVolumeDataset(volume))  # whatever Python still has to import, that user may not see
    os.seteuid(65534)
    for path in UCVolumeDataset(volume, cache_dir=cache):
        say(path)


PROGRAMS: dict[str, Callable[..., None]] = {
    "exactly-once": exactly_once,
    "distributed": distributed,
    "read": read,
    "endless": endless,
    "as-nobody": as_nobody,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
