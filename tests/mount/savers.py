"""What libraries write: a program of its own for each, with the library as its users have it.

    savers.py LIBRARY DIRECTORY COPY [MIB]

writes files below DIRECTORY and loads them back, says "saved", waits for a line, and loads them
from COPY too. It ends with an error unless both are equal to what was saved.
"""

import random
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SEED = 7


def tensors(mib: int) -> Any:
    import torch

    torch.manual_seed(SEED)
    return {f"layer{number}": torch.randn(1024, 256) for number in range(mib)}


def assert_equal(state: Any, loaded: Any) -> None:
    import torch

    assert set(state) == set(loaded)
    assert all(torch.equal(state[name], loaded[name]) for name in state)


def save_torch(root: Path, mib: int) -> None:
    import torch

    torch.save({"model": tensors(mib), "step": 3}, root / "model.pt")


def check_torch(root: Path, mib: int) -> None:
    import torch

    for mmap in (False, True):
        loaded = torch.load(root / "model.pt", weights_only=True, mmap=mmap)
        assert loaded["step"] == 3
        assert_equal(tensors(mib), loaded["model"])


def save_dcp(root: Path, mib: int) -> None:
    import torch.distributed.checkpoint as dcp

    for threads in (1, 4):
        for _ in range(2):  # the second goes over the first
            writer = dcp.FileSystemWriter(root / f"threads-{threads}", thread_count=threads)
            dcp.save(tensors(mib // 4), storage_writer=writer, no_dist=True)


def check_dcp(root: Path, mib: int) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    for threads in (1, 4):
        loaded = {name: torch.zeros_like(each) for name, each in tensors(mib // 4).items()}
        reader = dcp.FileSystemReader(root / f"threads-{threads}")
        dcp.load(loaded, storage_reader=reader, no_dist=True)
        assert_equal(tensors(mib // 4), loaded)
    assert not list(root.rglob("*.tmp"))


def save_safetensors(root: Path, mib: int) -> None:
    from safetensors.torch import save_file

    for _ in range(2):
        save_file(tensors(mib), root / "model.safetensors")


def check_safetensors(root: Path, mib: int) -> None:
    from safetensors.torch import load_file

    assert_equal(tensors(mib), load_file(root / "model.safetensors"))


def save_tensorboard(root: Path, mib: int) -> None:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(root))
    for step in range(50):
        writer.add_scalar("loss", 1 / (step + 1), step)
        if step % 10 == 0:
            writer.flush()
    writer.close()


def check_tensorboard(root: Path, mib: int) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(root))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == list(range(50))


def frame(mib: int) -> Any:
    import numpy as np
    import pandas as pd

    rows = mib << 16
    return pd.DataFrame({"n": np.random.default_rng(SEED).random(rows), "id": np.arange(rows)})


def save_pandas(root: Path, mib: int) -> None:
    frame(mib).to_parquet(root / "frame.parquet")


def check_pandas(root: Path, mib: int) -> None:
    import pandas as pd

    assert pd.read_parquet(root / "frame.parquet").equals(frame(mib))
    assert list(pd.read_parquet(root / "frame.parquet", columns=["id"])["id"][:3]) == [0, 1, 2]


def array(mib: int) -> Any:
    import numpy as np

    return np.random.default_rng(SEED).random((mib, 1 << 17))


def save_h5py(root: Path, mib: int) -> None:
    import h5py

    data = array(mib)
    with h5py.File(root / "data.h5", "w") as file:
        file["data"] = data
        file["small"] = [1, 2, 3]
    with h5py.File(root / "data.h5", "a") as file:
        file["data"][mib // 2] = 0
        file.create_dataset("later", data=data[:2], chunks=True, compression="gzip")


def check_h5py(root: Path, mib: int) -> None:
    import h5py

    data = array(mib)
    with h5py.File(root / "data.h5", "r") as file:
        assert (file["later"][:] == data[:2]).all()
        data[mib // 2] = 0
        assert (file["data"][:] == data).all()
        assert list(file["small"]) == [1, 2, 3]


def save_openpyxl(root: Path, mib: int) -> None:
    import openpyxl

    book = openpyxl.Workbook()
    for row in range(500):
        book.active.append([row, f"text {row}", row / 7])
    book.save(root / "book.xlsx")
    book = openpyxl.load_workbook(root / "book.xlsx")
    book.active["A1"] = "changed"
    book.save(root / "book.xlsx")


def check_openpyxl(root: Path, mib: int) -> None:
    import openpyxl

    rows = list(openpyxl.load_workbook(root / "book.xlsx").active.values)
    assert rows[0][0] == "changed"
    assert rows[499] == (499, "text 499", 499 / 7)


def save_zipfile(root: Path, mib: int) -> None:
    big = random.Random(SEED).randbytes(mib << 20)
    with zipfile.ZipFile(root / "archive.zip", "w") as archive:
        archive.writestr("one", big)
        archive.writestr("two", b"two")
    with zipfile.ZipFile(root / "archive.zip", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("three", big[:100_000])


def check_zipfile(root: Path, mib: int) -> None:
    big = random.Random(SEED).randbytes(mib << 20)
    with zipfile.ZipFile(root / "archive.zip") as archive:
        assert archive.testzip() is None
        assert archive.read("one") == big
        assert archive.read("two") == b"two"
        assert archive.read("three") == big[:100_000]


Work = Callable[[Path, int], None]

LIBRARIES: dict[str, tuple[Work, Work]] = {
    "torch": (save_torch, check_torch),
    "dcp": (save_dcp, check_dcp),
    "safetensors": (save_safetensors, check_safetensors),
    "tensorboard": (save_tensorboard, check_tensorboard),
    "pandas": (save_pandas, check_pandas),
    "h5py": (save_h5py, check_h5py),
    "openpyxl": (save_openpyxl, check_openpyxl),
    "zipfile": (save_zipfile, check_zipfile),
}


def main(library: str, directory: str, copy: str, mib: str = "64") -> None:
    save, check = LIBRARIES[library]
    save(Path(directory), int(mib))
    check(Path(directory), int(mib))
    sys.stdout.write("saved\n")
    sys.stdout.flush()
    sys.stdin.readline()
    check(Path(copy), int(mib))


if __name__ == "__main__":
    main(*sys.argv[1:])
