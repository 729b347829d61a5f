"""`UCVolumeDataset` iterated directly: what it yields, in which order, from where."""

import gc
import os
import pickle
import threading
from pathlib import Path

import pytest

from ucfuse.data import Checkpointable, UCVolumeDataset
from ucfuse.data.ranks import placement_of

from .files import Files, as_rank, complete_copies, names_of


def fetch_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("ucfuse-fetch")]


def test_yields_local_copies_under_their_own_names(
    volume_dir: Path, cache_dir: Path, files: Files
) -> None:
    paths = list(UCVolumeDataset(volume_dir, cache_dir=cache_dir))

    assert names_of(paths) == sorted(files)
    assert all(Path(path).is_relative_to(cache_dir) for path in paths)
    assert {os.path.basename(path): Path(path).read_bytes() for path in paths} == files


def test_later_epochs_copy_nothing(volume_dir: Path, cache_dir: Path, files: Files) -> None:
    dataset = UCVolumeDataset(volume_dir, cache_dir=cache_dir)
    first = list(dataset)
    copied = dataset.stats()["bytes"]

    assert list(dataset) == first
    assert copied == sum(map(len, files.values()))
    assert dataset.stats()["bytes"] == copied
    assert dataset.stats()["hits"] == dataset.stats()["misses"] == len(files)


def test_recursive_mirrors_sub_directories_and_patterns_choose(
    volume_dir: Path, cache_dir: Path
) -> None:
    for name in ("a.jpg", "b.txt", "cats/a.jpg", "cats/old/a.jpg", "dogs/c.jpg"):
        path = volume_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)

    def below(**options: object) -> list[str]:
        dataset = UCVolumeDataset(volume_dir, cache_dir=cache_dir, **options)  # type: ignore[arg-type]
        paths = list(dataset)
        root = Path(os.path.commonpath([*paths, str(next(cache_dir.glob("files/*")) / "x")]))
        assert all(Path(path).read_text() == os.path.relpath(path, root) for path in paths)
        return [os.path.relpath(path, root) for path in paths]

    assert below() == ["a.jpg", "b.txt"]
    assert below(recursive=True, pattern="*.jpg") == [
        "a.jpg",
        "cats/a.jpg",
        "cats/old/a.jpg",
        "dogs/c.jpg",
    ]
    assert below(recursive=True, pattern="cats/*") == ["cats/a.jpg", "cats/old/a.jpg"]


def test_a_changed_file_is_copied_again(volume_dir: Path, cache_dir: Path, files: Files) -> None:
    """Same size, same modification time, another inode: within one life of the mount it counts."""
    dataset = UCVolumeDataset(volume_dir, cache_dir=cache_dir)
    list(dataset)
    longer, replaced = sorted(files)[:2]
    (volume_dir / longer).write_bytes(b"longer" * 1000)
    status = (volume_dir / replaced).stat()
    other = volume_dir.with_name("other")
    other.write_bytes(bytes(len(files[replaced])))
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.rename(volume_dir / replaced)

    paths = list(dataset)

    assert Path(paths[0]).read_bytes() == b"longer" * 1000
    assert Path(paths[1]).read_bytes() == bytes(len(files[replaced]))
    assert dataset.stats()["misses"] == len(files) + 2


def test_a_kept_cache_serves_the_next_job(volume_dir: Path, cache_dir: Path, files: Files) -> None:
    list(UCVolumeDataset(volume_dir, cache_dir=cache_dir))
    dataset = UCVolumeDataset(volume_dir, cache_dir=cache_dir)
    list(dataset)
    assert dataset.stats()["bytes"] == 0


def test_a_copy_that_was_tampered_with_or_removed_is_made_again(
    volume_dir: Path, cache_dir: Path, files: Files
) -> None:
    dataset = UCVolumeDataset(volume_dir, cache_dir=cache_dir)
    paths = list(dataset)
    Path(paths[3]).unlink()
    Path(paths[4]).unlink()
    Path(paths[4]).write_bytes(b"not ours")
    contents = [Path(path).read_bytes() for path in dataset]
    assert contents == [files[name] for name in sorted(files)]


def test_a_missing_file_ends_the_pass_at_once_with_its_path(
    volume_dir: Path, cache_dir: Path, files: Files
) -> None:
    dataset = UCVolumeDataset(volume_dir, cache_dir=cache_dir)
    gone = volume_dir / sorted(files)[5]
    gone.unlink()
    received = []
    with pytest.raises(FileNotFoundError) as raised:
        received.extend(iter(dataset))
    assert raised.value.filename == str(gone)
    assert dataset.state_dict()["done"] == [0, 5]
    assert not fetch_threads()


def test_what_cannot_be_read_is_skipped_counted_and_named(
    volume_dir: Path, cache_dir: Path, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = UCVolumeDataset(volume_dir, cache_dir=cache_dir, on_error="skip")
    gone = volume_dir / sorted(files)[5]
    gone.unlink()
    assert len(list(dataset)) == len(files) - 1
    assert dataset.stats()["skipped"] == 1
    assert str(gone) in caplog.text


def test_a_missing_directory_and_wrong_options_are_refused_at_once(volume_dir: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        UCVolumeDataset(volume_dir / "nowhere")
    for options in ({"fetchers": 0}, {"cache_bytes": -1}, {"uneven": "x"}, {"on_error": "x"}):
        with pytest.raises(ValueError):  # noqa: PT011 - any of them
            UCVolumeDataset(volume_dir, **options)  # type: ignore[arg-type]


def test_dropping_the_iterator_or_the_dataset_stops_its_threads(
    volume_dir: Path, cache_dir: Path, files: Files
) -> None:
    dataset = UCVolumeDataset(volume_dir, cache_dir=cache_dir)
    iterator = iter(dataset)
    next(iterator)
    del iterator
    assert not fetch_threads()

    list(dataset)
    del dataset
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("ucfuse-fetch"):
            thread.join(10)
    assert not fetch_threads()


def test_epochs_go_on_by_themselves_or_as_told(
    volume_dir: Path, cache_dir: Path, files: Files
) -> None:
    dataset = UCVolumeDataset(volume_dir, cache_dir=cache_dir, shuffle=True, seed=5)
    passes = [list(dataset) for _ in range(3)]
    assert len(set(map(tuple, passes))) == 3
    assert dataset.state_dict()["epoch"] == 3
    dataset.set_epoch(1)
    assert list(dataset) == passes[1]


def test_a_pass_that_is_left_early_does_not_count_as_an_epoch(
    volume_dir: Path, cache_dir: Path, files: Files
) -> None:
    """So a rank that only peeks stays in step with the others."""
    dataset = UCVolumeDataset(volume_dir, cache_dir=cache_dir, shuffle=True)
    peeked = next(iter(dataset))
    assert next(iter(dataset)) == peeked


def test_state_resumes_in_mid_epoch(volume_dir: Path, cache_dir: Path, files: Files) -> None:
    dataset = UCVolumeDataset(volume_dir, cache_dir=cache_dir, shuffle=True)
    assert isinstance(dataset, Checkpointable)
    iterator = iter(dataset)
    before = [next(iterator) for _ in range(40)]
    state = dataset.state_dict()
    resumed = UCVolumeDataset(volume_dir, cache_dir=cache_dir, shuffle=True)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    after = list(resumed)
    assert sorted(names_of(before + after)) == sorted(files)
    assert len(list(resumed)) == len(files)


def test_set_epoch_keeps_a_loaded_state_of_that_epoch_only(
    volume_dir: Path, cache_dir: Path, files: Files
) -> None:
    dataset = UCVolumeDataset(volume_dir, cache_dir=cache_dir)
    iterator = iter(dataset)
    next(iterator)
    state = dataset.state_dict()
    for epoch, length in ((0, len(files) - 1), (1, len(files))):
        resumed = UCVolumeDataset(volume_dir, cache_dir=cache_dir)
        resumed.load_state_dict(state)
        resumed.set_epoch(epoch)
        assert len(list(resumed)) == length


def test_a_state_of_a_directory_that_changed_is_refused(
    volume_dir: Path, cache_dir: Path, files: Files
) -> None:
    state = UCVolumeDataset(volume_dir, cache_dir=cache_dir).state_dict()
    (volume_dir / "new.bin").touch()
    with pytest.raises(ValueError, match="files"):
        UCVolumeDataset(volume_dir, cache_dir=cache_dir).load_state_dict(state)


@pytest.mark.parametrize(("uneven", "repeated"), [("strict", 0), ("pad", 1)])
def test_ranks_of_the_environment_share_the_files(
    volume_dir: Path, cache_dir: Path, files: Files, uneven: str, repeated: int
) -> None:
    received = []
    for rank in range(3):
        with as_rank(rank, 3):
            dataset = UCVolumeDataset(volume_dir, cache_dir=cache_dir, uneven=uneven)  # type: ignore[arg-type]
            paths = list(dataset)
            assert len(dataset) == len(paths)
            received += names_of(paths)
    assert set(received) == set(files)
    assert len(received) == len(files) + repeated


def test_half_an_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for environment in ({"RANK": "0"}, {"WORLD_SIZE": "2"}, {"RANK": "2", "WORLD_SIZE": "2"}):
        with pytest.raises(ValueError, match="RANK"):
            placement_of(environment)


def test_a_pickled_dataset_yields_the_same(volume_dir: Path, cache_dir: Path, files: Files) -> None:
    dataset = UCVolumeDataset(volume_dir, cache_dir=cache_dir, shuffle=True)
    first = list(dataset)
    copy = pickle.loads(pickle.dumps(dataset))
    copy.set_epoch(0)
    assert list(copy) == first
    assert len(list(complete_copies(cache_dir))) == len(files)
