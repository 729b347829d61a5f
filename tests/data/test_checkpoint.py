"""Distributed checkpoints in one process: ours and torch's classes read each other's."""

import os
import pickle
import shutil
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from ucfuse.data import UCVolumeReader, UCVolumeWriter, latest_complete, verify
from ucfuse.data.checkpoint import CheckpointError, RefusedGlobal, SaveFailed
from ucfuse.data.checkpoint.archive import find_tensor
from ucfuse.data.checkpoint.metadata import load_metadata

from .checkpoints import blank, equal, load, mixed_state, small_state

pytestmark = pytest.mark.filterwarnings("ignore")


def save(state: Any, path: Path, **options: Any) -> None:
    """Save without ranks."""
    dcp.save(state, storage_writer=UCVolumeWriter(path, **options), no_dist=True)


def failure(caught: pytest.ExceptionInfo[CheckpointException]) -> BaseException:
    """Return what the one rank there was failed with."""
    (error, _) = caught.value.failures[0]
    return error


class Unsafe:
    """What would run code when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


class Custom:
    """A value that is neither a tensor nor plain Python."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom)

    def __hash__(self) -> int:
        return 1


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("single_file", [True, False])
@pytest.mark.parametrize("writer", [UCVolumeWriter, dcp.FileSystemWriter])
@pytest.mark.parametrize("reader", [UCVolumeReader, dcp.FileSystemReader])
def test_what_either_writer_saved_either_reader_loads(
    tmp_path: Path, threads: int, single_file: bool, writer: Any, reader: Any
) -> None:
    """A checkpoint is the same on disk whoever made it; all dtypes and layouts come back."""
    state = mixed_state(5)
    options = {"thread_count": threads, "single_file_per_rank": single_file}
    dcp.save(state, storage_writer=writer(tmp_path / "c", **options), no_dist=True)

    loaded = blank(state)
    dcp.load(loaded, storage_reader=reader(tmp_path / "c"), no_dist=True)

    assert equal(loaded, state)
    verify(tmp_path / "c")


def test_files_have_the_names_that_torch_gives_them(tmp_path: Path) -> None:
    save(small_state(1), tmp_path, thread_count=2)

    assert sorted(os.listdir(tmp_path)) == [".metadata", "__0_0.distcp", "__0_1.distcp"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64])
def test_a_plain_tensor_is_found_without_torch_load(tmp_path: Path, dtype: torch.dtype) -> None:
    """The fast way is really taken: the head of an item tells where the bytes are."""
    state = {"weights": torch.randn(30, 40).to(dtype)}
    save(state, tmp_path)
    (place,) = load_metadata(tmp_path / ".metadata").storage_data.values()
    stored = (tmp_path / place.relative_path).read_bytes()[place.offset :]

    record = find_tensor(stored[:4096])

    assert record is not None
    assert (record.dtype, record.sizes) == (dtype, (30, 40))
    stop = record.data_start + 30 * 40 * dtype.itemsize
    assert stored[record.data_start : stop] == state["weights"].numpy().tobytes()


def test_tensors_are_loaded_into_the_memory_they_have(tmp_path: Path) -> None:
    state = small_state(1)
    save(state, tmp_path)
    target = blank(state)
    addresses = {name: tensor.data_ptr() for name, tensor in target["model"].items()}

    dcp.load(target, storage_reader=UCVolumeReader(tmp_path), no_dist=True)

    assert equal(target, state)
    assert {name: tensor.data_ptr() for name, tensor in target["model"].items()} == addresses


def test_tensors_are_loaded_into_other_dtypes_and_layouts(tmp_path: Path) -> None:
    state = {"a": torch.randn(50, 60), "b": torch.randn(50, 60)}
    save(state, tmp_path)
    wide = torch.zeros(50, 120)
    target = {"a": torch.zeros(50, 60, dtype=torch.float64), "b": wide[:, ::2]}

    dcp.load(target, storage_reader=UCVolumeReader(tmp_path), no_dist=True)

    assert torch.equal(target["a"], state["a"].double())
    assert torch.equal(wide[:, ::2], state["b"])
    assert not wide[:, 1::2].any()


def test_a_model_and_its_optimizer_go_on_where_they_were(tmp_path: Path) -> None:
    """The way of the documentation: get_state_dict, save, load, set_state_dict."""

    def trained(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        return model, optimizer

    model, optimizer = trained(1)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    save({"model": model_state, "optim": optimizer_state, "step": 1000}, tmp_path)
    other, other_optimizer = trained(2)
    model_state, optimizer_state = get_state_dict(other, other_optimizer)
    state = {"model": model_state, "optim": optimizer_state}
    dcp.load(state, storage_reader=UCVolumeReader(tmp_path), no_dist=True)
    set_state_dict(
        other,
        other_optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optim"],
    )

    assert equal(dict(other.state_dict()), dict(model.state_dict()))
    assert equal(get_state_dict(other, other_optimizer)[1], get_state_dict(model, optimizer)[1])


def test_torchs_converter_reads_it(tmp_path: Path) -> None:
    save(small_state(1), tmp_path / "c")

    dcp_to_torch_save(tmp_path / "c", tmp_path / "one.pt")

    assert equal(torch.load(tmp_path / "one.pt", weights_only=True), small_state(1))


def test_a_save_over_an_older_checkpoint_leaves_only_the_new_one(tmp_path: Path) -> None:
    """With fewer files than before, with more, and what torch's own writer left."""
    dcp.save(small_state(0), storage_writer=dcp.FileSystemWriter(tmp_path), no_dist=True)
    for seed, threads in ((1, 4), (2, 1), (3, 2)):
        save(small_state(seed), tmp_path, thread_count=threads)

        assert equal(load(small_state(seed), tmp_path), small_state(seed))
        assert len(os.listdir(tmp_path)) == threads + 1


def test_plans_that_torch_caches_do_not_bring_back_old_names(tmp_path: Path) -> None:
    """A cached plan has the file names of the first save, which the older checkpoint still has."""
    for seed in (1, 2, 3):
        planner = DefaultSavePlanner(enable_plan_caching=True)
        writer = UCVolumeWriter(tmp_path)
        before = set(os.listdir(tmp_path)) - {".metadata"}
        dcp.save(small_state(seed), storage_writer=writer, planner=planner, no_dist=True)

        assert not before & set(os.listdir(tmp_path))
        assert equal(load(small_state(seed), tmp_path), small_state(seed))


def test_overwrite_false_refuses_a_directory_with_a_checkpoint(tmp_path: Path) -> None:
    save(small_state(1), tmp_path)

    with pytest.raises(CheckpointException) as caught:
        save(small_state(2), tmp_path, overwrite=False)

    assert isinstance(failure(caught), CheckpointError)
    assert equal(load(small_state(1), tmp_path), small_state(1))


def test_without_collectives_each_rank_has_metadata_of_its_own(tmp_path: Path) -> None:
    for seed in (1, 2):
        writer = UCVolumeWriter(tmp_path)
        dcp.save(small_state(seed), storage_writer=writer, no_dist=True, use_collectives=False)

    assert equal(load(small_state(2), tmp_path), small_state(2))
    assert len(os.listdir(tmp_path)) == 2
    assert (tmp_path / "__0.metadata").exists()
    verify(tmp_path)


def test_the_two_kinds_of_checkpoint_do_not_share_a_directory(tmp_path: Path) -> None:
    """Torch would load the older one of them, and say nothing."""
    save(small_state(1), tmp_path)

    writer = UCVolumeWriter(tmp_path)
    with pytest.raises(CheckpointError, match="use_collectives"):
        dcp.save(small_state(2), storage_writer=writer, no_dist=True, use_collectives=False)


def test_writer_and_reader_can_be_pickled(tmp_path: Path) -> None:
    writer = pickle.loads(pickle.dumps(UCVolumeWriter(tmp_path, thread_count=3)))
    dcp.save(small_state(1), storage_writer=writer, no_dist=True)
    reader = pickle.loads(pickle.dumps(UCVolumeReader(tmp_path)))
    state = blank(small_state(1))

    dcp.load(state, storage_reader=reader, no_dist=True)

    assert writer.thread_count == 3
    assert equal(state, small_state(1))


def test_an_error_in_a_thread_fails_the_save_and_nothing_is_published(tmp_path: Path) -> None:
    """Torch's writer loses it, and publishes metadata of files that are not there."""

    class Failing(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            if write_item.index.fqn == "model.layer2":
                raise ZeroDivisionError
            return super().resolve_data(write_item)

    writer = UCVolumeWriter(tmp_path / "c", thread_count=4)
    with pytest.raises(CheckpointException) as caught:
        dcp.save(small_state(1), storage_writer=writer, planner=Failing(), no_dist=True)

    assert isinstance(failure(caught), ZeroDivisionError)
    assert os.listdir(tmp_path / "c") == []
    assert latest_complete(tmp_path) is None


def test_a_data_file_that_is_lost_before_the_end_is_noticed(tmp_path: Path) -> None:
    """Somebody removes or cuts what was written: the metadata must not name it."""

    class Losing(UCVolumeWriter):
        def finish(self, metadata: Any, results: Any) -> None:
            os.truncate(tmp_path / "c/__0_0.distcp", 100)
            super().finish(metadata, results)

    with pytest.raises(CheckpointException) as caught:
        dcp.save(small_state(1), storage_writer=Losing(tmp_path / "c"), no_dist=True)

    assert isinstance(failure(caught), SaveFailed)
    assert latest_complete(tmp_path) is None


def test_metadata_that_would_run_code_is_refused_by_name(tmp_path: Path) -> None:
    save(small_state(1), tmp_path)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Unsafe(str(tmp_path / "made"))))

    with pytest.raises(CheckpointException, match=r"posix\.mkdir"):
        load(small_state(1), tmp_path)
    with pytest.raises(RefusedGlobal, match=r"posix\.mkdir"):
        verify(tmp_path)

    assert not (tmp_path / "made").exists()


def test_metadata_of_another_release_of_python_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first releases of 3.11 pickle members of enums in another way than those since."""

    def reduce(member: Enum, _: int) -> Any:
        return getattr, (type(member), member.name)

    with monkeypatch.context() as patch:
        patch.setattr(_MEM_FORMAT_ENCODING, "__reduce_ex__", reduce)
        save(small_state(1), tmp_path)
    assert b"getattr" in (tmp_path / ".metadata").read_bytes()

    assert equal(load(small_state(2), tmp_path), small_state(1))


class Reaching:
    """Pickles as a call of getattr."""

    def __init__(self, owner: Any, name: str) -> None:
        self._of = (owner, name)

    def __reduce__(self) -> Any:
        return getattr, self._of


@pytest.mark.parametrize(
    "of",
    [(Metadata, "__init__"), (_MEM_FORMAT_ENCODING, "__class__"), (_MEM_FORMAT_ENCODING, "mro")],
)
def test_metadata_that_reaches_for_anything_but_an_enum_is_refused(
    tmp_path: Path, of: tuple[Any, str]
) -> None:
    save(small_state(1), tmp_path)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Reaching(*of)))

    with pytest.raises(RefusedGlobal, match=r"builtins\.getattr"):
        verify(tmp_path)


def test_an_item_that_would_run_code_is_refused_by_name(tmp_path: Path) -> None:
    save({"value": Unsafe(str(tmp_path / "made"))}, tmp_path / "c")
    shutil.rmtree(tmp_path / "made", ignore_errors=True)

    with pytest.raises(CheckpointException, match=r"posix\.mkdir") as caught:
        load({"value": None}, tmp_path / "c")

    assert isinstance(failure(caught), RefusedGlobal)
    assert not (tmp_path / "made").exists()


def test_a_class_of_the_program_is_loaded_when_it_is_allowed(tmp_path: Path) -> None:
    save({"value": Custom()}, tmp_path)
    with pytest.raises(CheckpointException, match="Custom"):
        load({"value": None}, tmp_path)

    with torch.serialization.safe_globals([Custom]):
        assert load({"value": None}, tmp_path) == {"value": Custom()}
    trusting = {"value": None}
    reader = UCVolumeReader(tmp_path, weights_only=False)
    dcp.load(trusting, storage_reader=reader, no_dist=True)
    assert trusting == {"value": Custom()}


def test_a_tensor_file_cut_short_is_an_error(tmp_path: Path) -> None:
    save(small_state(1), tmp_path)
    os.truncate(tmp_path / "__0_0.distcp", (tmp_path / "__0_0.distcp").stat().st_size // 2)

    with pytest.raises(CheckpointException, match="ends at byte"):
        load(small_state(1), tmp_path)


def test_no_metadata_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointException, match=r"No such file.*\.metadata"):
        load(small_state(1), tmp_path)


def test_a_url_is_refused() -> None:
    for kind in (UCVolumeWriter, UCVolumeReader):
        with pytest.raises(ValueError, match="mount it"):
            kind("s3://bucket/checkpoint")
