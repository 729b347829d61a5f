"""What a load reads: what it was asked for, once, in the order of the files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st

from ucfuse.data import UCVolumeReader, UCVolumeWriter
from ucfuse.data.checkpoint.shares import Item, Wanted, plan_shares

from .checkpoints import blank, equal
from .faulty import Faulty, faulty_directory

pytestmark = pytest.mark.filterwarnings("ignore")

MiB = 1 << 20


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    """A directory that counts the bytes read."""
    with faulty_directory(tmp_path_factory.mktemp("counted")) as served:
        yield served


def trained(model_mib: int, tensors: int) -> dict[str, Any]:
    """Return a model, and an Adam-like optimizer state twice as large."""
    rows = model_mib * MiB // tensors // 4 // 256
    model = {f"layer{n}.weight": torch.rand(rows, 256) for n in range(tensors)}
    norms = {f"layer{n}.norm": torch.rand(256) for n in range(tensors)}
    moments = {
        name: {"exp_avg": torch.rand(rows, 256), "exp_avg_sq": torch.rand(rows, 256)}
        for name in model
    }
    return {"model": {**model, **norms}, "optim": moments, "step": 7}


def read_model(counted: Faulty, model_mib: int, tensors: int, writer: Any) -> None:
    """Load the model alone of a checkpoint; fail unless little more than its bytes is read."""
    state = trained(model_mib, tensors)
    path = counted.backing / f"{writer.__name__}-{model_mib}-{tensors}"
    dcp.save(state, storage_writer=writer(path, thread_count=4), no_dist=True)
    model = {"model": blank(state["model"])}
    counted.arm(0, "none")
    dcp.load(model, storage_reader=UCVolumeReader(counted.path / path.name), no_dist=True)
    read = counted.counts()["bytes read"]
    wanted = sum(tensor.nbytes for tensor in state["model"].values())

    assert equal(model["model"], state["model"])
    assert wanted <= read <= 1.02 * wanted


@pytest.mark.parametrize("writer", [UCVolumeWriter, dcp.FileSystemWriter])
@pytest.mark.parametrize("tensors", [4, 32])
def test_loading_the_model_alone_reads_its_bytes_alone(
    counted: Faulty, writer: Any, tensors: int
) -> None:
    """Also where its tensors lie between those of the optimizer."""
    read_model(counted, 32, tensors, writer)


@pytest.mark.long
@pytest.mark.parametrize("tensors", [1, 16, 200])
def test_loading_a_large_model_alone_reads_its_bytes_alone(counted: Faulty, tensors: int) -> None:
    read_model(counted, 256, tensors, UCVolumeWriter)


def test_a_load_of_everything_reads_every_byte_once(counted: Faulty) -> None:
    state = trained(24, 12)
    path = counted.backing / "whole"
    dcp.save(state, storage_writer=UCVolumeWriter(path, thread_count=2), no_dist=True)
    target = blank(state)
    # Readers share pages where their parts of a file meet.
    counted.arm(0, "none")
    dcp.load(target, storage_reader=UCVolumeReader(counted.path / "whole"), no_dist=True)

    assert equal(target, state)
    stored = sum(file.stat().st_size for file in path.iterdir())
    assert counted.counts()["bytes read"] <= 1.005 * stored


@st.composite
def items(draw: st.DrawFn) -> list[Item]:
    """Return items of a few files, back to back, with what is wanted of each."""
    found = []
    for name in range(draw(st.integers(1, 3))):
        offset = 0
        for _ in range(draw(st.integers(0, 6))):
            rows = draw(st.integers(1, 40))
            row_bytes = draw(st.sampled_from([4, 1 * MiB, 8 * MiB]))
            length = 1500 + rows * row_bytes
            item = Item(str(name), offset, length, torch.uint8, (rows, row_bytes))
            offset += length
            for _ in range(draw(st.integers(0, 2))):
                start = draw(st.integers(0, rows - 1))
                count = draw(st.integers(1, rows - start))
                target = torch.empty(count, row_bytes, device="meta", dtype=torch.uint8)
                item.wanted.append(Wanted(target, (start, 0), (count, row_bytes)))
            if item.wanted:
                found.append(item)
    return found


@given(items())
def test_shares_have_every_wanted_row_once_and_in_order(found: list[Item]) -> None:
    shares = plan_shares(found)

    assert len({step.item.path for share in shares for step in share}) == len(shares)
    for share in shares:
        places = [(step.item.offset, step.start) for step in share]
        assert places == sorted(places)
    steps = [step for share in shares for step in share]
    rows = [(id(step.item), row) for step in steps for row in range(step.start, step.stop)]
    assert len(rows) == len(set(rows))
    wanted = {
        (id(item), row) for item in found for each in item.wanted for row in range(*each.rows)
    }
    assert set(rows) == wanted


@given(items())
def test_a_reader_never_reads_on_beyond_what_is_wanted(found: list[Item]) -> None:
    """Where a step may read on to, every item up to there is wanted whole."""
    for share in plan_shares(found):
        whole = {step.item.offset: step for step in share if step.is_whole}
        for step in share:
            at = step.item.offset
            while at < step.limit:
                at = whole[at].item.stop
            assert step.limit in (0, at)


def test_readers_below_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one"):
        UCVolumeReader(tmp_path, readers=0)
