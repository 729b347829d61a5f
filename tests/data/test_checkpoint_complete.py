"""`latest_complete`, `verify` and `prune`: nothing incomplete is taken for a checkpoint."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from ucfuse.data import UCVolumeWriter, latest_complete, prune, verify
from ucfuse.data.checkpoint import CheckpointError, DamagedCheckpoint

from .checkpoints import equal, load, small_state
from .faulty import Faulty, faulty_directory

pytestmark = pytest.mark.filterwarnings("ignore")


def save(root: Path, step: int) -> Path:
    """Save a checkpoint of this step."""
    path = root / f"step_{step}"
    dcp.save(small_state(step), storage_writer=UCVolumeWriter(path, thread_count=2), no_dist=True)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with the checkpoints of steps 1 to 4."""
    path = tmp_path / "root"
    path.mkdir()
    for step in range(1, 5):
        save(path, step)
    return path


def damaged(path: Path) -> str:
    """Return what `verify` says of a damaged checkpoint."""
    with pytest.raises(DamagedCheckpoint) as caught:
        verify(path)
    return str(caught.value)


def test_the_newest_is_what_was_published_last(root: Path) -> None:
    assert latest_complete(root) == str(root / "step_4")
    save(root, 2)
    assert latest_complete(root) == str(root / "step_2")


def test_published_in_the_same_second_the_higher_number_is_newer(root: Path) -> None:
    """Object stores know whole seconds only."""
    save(root, 10)
    for path in root.iterdir():
        os.utime(path / ".metadata", (1e9, 1e9))

    assert latest_complete(root) == str(root / "step_10")


def test_there_may_be_none(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()

    assert latest_complete(tmp_path) is None


def test_before_the_first_save_there_is_none(tmp_path: Path) -> None:
    assert latest_complete(tmp_path / "checkpoints") is None


def flipped_unnoticed(directory: Path, name: str) -> Iterator[int]:
    """Flip bits in every third byte of a file, one after the other; yield those `verify` passes."""
    path = directory / name
    sound = path.read_bytes()
    for at in range(0, len(sound), 3):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 0x41]) + sound[at + 1 :])
        try:
            verify(directory)
        except CheckpointError:
            continue
        yield at


def test_data_that_verify_passes_loads_right_whatever_byte_was_flipped(tmp_path: Path) -> None:
    state = {"tensor": torch.arange(20.0), "number": 3}
    dcp.save(state, storage_writer=UCVolumeWriter(tmp_path), no_dist=True)
    size = (tmp_path / "__0_0.distcp").stat().st_size
    passed = 0
    for at in flipped_unnoticed(tmp_path, "__0_0.distcp"):
        passed += 1
        assert equal(load(state, tmp_path), state), at
    assert 0 < passed < size // 3


def test_metadata_that_verify_passes_never_loads_wrong_values(tmp_path: Path) -> None:
    """A name that was damaged is one that the checkpoint does not have: the load says so."""
    state = {"tensor": torch.arange(20.0), "number": 3}
    dcp.save(state, storage_writer=UCVolumeWriter(tmp_path), no_dist=True)
    outcomes: Counter[str] = Counter()
    for at in flipped_unnoticed(tmp_path, ".metadata"):
        try:
            loaded = load(state, tmp_path)
        except (CheckpointException, RuntimeError):
            outcomes["refused"] += 1
            continue
        assert equal(loaded, state), at
        outcomes["right"] += 1
    assert outcomes["refused"]
    assert outcomes["right"]


def test_without_metadata_or_a_data_file_it_is_not_complete(root: Path) -> None:
    (root / "step_4/.metadata").unlink()
    (root / "step_3/__0_1.distcp").unlink()
    os.truncate(root / "step_2/__0_0.distcp", 1000)

    assert latest_complete(root) == str(root / "step_1")
    assert "no .metadata" in damaged(root / "step_4")
    assert "__0_1.distcp: No such file" in damaged(root / "step_3")
    assert "__0_0.distcp has 1000 bytes" in damaged(root / "step_2")
    verify(root / "step_1")


def test_metadata_cut_short_is_not_complete(root: Path) -> None:
    size = (root / "step_4/.metadata").stat().st_size
    for part in (0, 1, size // 2, size - 1):
        os.truncate(root / "step_4/.metadata", part)
        assert latest_complete(root) == str(root / "step_3")
        assert "cannot be decoded" in damaged(root / "step_4")


def test_verify_finds_every_byte_that_was_changed(tmp_path: Path) -> None:
    """Wherever it is: in a tensor, in what describes it, or in the archive around them."""
    path = tmp_path / "c"
    state = {"a": torch.randn(11, 7), "step": 3}
    dcp.save(state, storage_writer=UCVolumeWriter(path), no_dist=True)
    file = path / "__0_0.distcp"
    sound = file.read_bytes()
    data = sound.find(state["a"].numpy().tobytes())
    found = 0
    for at in range(data, data + 11 * 7 * 4, 5):
        file.write_bytes(sound[:at] + bytes([sound[at] ^ 0x40]) + sound[at + 1 :])
        assert "a at" in damaged(path)
        found += 1
    assert found > 50
    file.write_bytes(sound)
    verify(path)


def test_verify_compares_stored_tensors_with_the_metadata(tmp_path: Path) -> None:
    """The files of another save in the place of its own: sizes fit, contents do not."""
    one, other = tmp_path / "one", tmp_path / "other"
    dcp.save({"a": torch.zeros(4, 6)}, storage_writer=UCVolumeWriter(one), no_dist=True)
    dcp.save({"a": torch.zeros(6, 4)}, storage_writer=UCVolumeWriter(other), no_dist=True)
    shutil.copy(other / "__0_0.distcp", one / "__0_0.distcp")

    assert "unlike the metadata" in damaged(one)


def test_verify_takes_files_that_have_no_checksums(tmp_path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        path = save(tmp_path, 1)
    finally:
        torch.serialization.set_crc32_options(before)

    verify(path)


def test_prune_keeps_the_newest_complete_ones(root: Path) -> None:
    assert prune(root, keep=2) == [str(root / "step_1"), str(root / "step_2")]
    assert sorted(os.listdir(root)) == ["step_3", "step_4"]
    assert prune(root, keep=2) == []


def test_prune_does_not_count_incomplete_ones(root: Path) -> None:
    """What has no metadata may be a save under way: it stays."""
    (root / "step_4/.metadata").unlink()
    (root / "step_3/__0_0.distcp").unlink()

    assert prune(root, keep=1) == [str(root / "step_1")]
    assert sorted(os.listdir(root)) == ["step_2", "step_3", "step_4"]
    assert equal(load(small_state(2), root / "step_2"), small_state(2))


def test_prune_without_a_complete_one_removes_nothing(root: Path) -> None:
    for path in root.iterdir():
        (path / "__0_0.distcp").unlink()

    assert prune(root, keep=1) == []
    assert len(os.listdir(root)) == 4


def test_prune_never_removes_all(root: Path) -> None:
    with pytest.raises(ValueError, match="never removed"):
        prune(root, keep=0)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    """A directory with faults."""
    with faulty_directory(tmp_path_factory.mktemp("prune")) as served:
        yield served


@pytest.mark.parametrize("action", ["EIO", "kill"])
def test_an_interrupted_prune_leaves_nothing_half_and_is_finished_later(
    faulty: Faulty, root: Path, action: str
) -> None:
    """At whatever request it ends, what is left is complete or no checkpoint, and prune goes on."""
    for number in range(1, 60, 4):
        shutil.rmtree(faulty.backing / "root", ignore_errors=True)
        shutil.copytree(root, faulty.backing / "root")
        faulty.arm(number, action)
        prune_in_child(faulty.path / "root")

        assert latest_complete(faulty.backing / "root") == str(faulty.backing / "root/step_4")
        for path in (faulty.backing / "root").iterdir():
            if (path / ".metadata").exists():
                verify(path)
        prune(faulty.backing / "root", keep=2)
        assert sorted(os.listdir(faulty.backing / "root")) == ["step_3", "step_4"]


def prune_in_child(root: Path) -> None:
    """Prune in a process that may be killed."""
    child = os.fork()
    if child == 0:
        try:
            prune(root, keep=2)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
