"""What goes wrong around a job: full disks, odd names, forks, signals, changing directories."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from tests.mount.programs import eventually
from ucfuse.data import DataLoader, UCVolumeDataset

from .files import Files, complete_copies, names_of, write_files
from .test_processes import PROGRAM, ROOT

ODD_NAMES = [
    b" leading and trailing ",
    b"-rf",
    b"a\nb",
    b"caf\xc3\xa9",
    b"ledger",
    b"not utf-8 \xff\xfe",
    b"x" * 255,
    b"{brace} %s $HOME",
]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB for the cache."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", path], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("this user cannot mount")
    yield path
    # A thread that fetched ahead may still be closing its file.
    eventually("the end of the disk", lambda: not subprocess.run(["umount", path]).returncode)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("limit", [None, 10 << 20])
def test_a_disk_that_fills_up_never_stops_or_spoils_an_epoch(
    volume_dir: Path, small_disk: Path, workers: int, limit: int | None
) -> None:
    files = write_files(volume_dir, 60, 40_000)
    dataset = UCVolumeDataset(volume_dir, cache_dir=small_disk / "cache", cache_bytes=limit)
    loader = DataLoader(dataset, 4, num_workers=workers)
    for _ in range(2):
        paths = [path for batch in loader for path in batch]
        assert {os.path.basename(path): Path(path).read_bytes() for path in paths} == files
    stats = loader.stats()
    assert stats["passed"] > 0
    assert stats["hits"] > 0


def test_a_disk_with_no_room_at_all_is_named(volume_dir: Path, small_disk: Path) -> None:
    files = write_files(volume_dir, 3, 1000)
    with pytest.raises(OSError, match="No space"):
        (small_disk / "filler").write_bytes(bytes(2 << 20))
    dataset = UCVolumeDataset(volume_dir, cache_dir=small_disk / "cache")
    assert list(dataset) == [str(volume_dir / name) for name in sorted(files)]


@pytest.mark.parametrize("limit", [None, 1 << 20])
def test_any_file_name_passes_through_workers(
    volume_dir: Path, cache_dir: Path, limit: int | None
) -> None:
    wanted = {}
    for number, name in enumerate(ODD_NAMES):
        below = os.path.join(os.fsencode(volume_dir), b"sub \xff")
        os.makedirs(below, exist_ok=True)
        path = os.path.join(below, name)
        Path(os.fsdecode(path)).write_bytes(b"%d" % number)
        wanted[name] = b"%d" % number
    dataset = UCVolumeDataset(volume_dir, recursive=True, cache_dir=cache_dir, cache_bytes=limit)
    loader = DataLoader(dataset, 2, num_workers=2)
    for _ in range(2):
        paths = [path for batch in loader for path in batch]
        received = {os.fsencode(os.path.basename(path)): Path(path).read_bytes() for path in paths}
        assert received == wanted


def test_a_process_that_is_forked_in_mid_pass_reads_for_itself(
    volume_dir: Path, cache_dir: Path, files: Files
) -> None:
    """Neither its parent's threads nor its locks are taken over; both go on."""
    dataset = UCVolumeDataset(volume_dir, cache_dir=cache_dir, cache_bytes=100_000)
    ours = iter(dataset)
    first = list(islice(ours, 10))
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    child = fork.Process(target=lambda: answers.put(names_of(dataset)))
    child.start()
    received: list[str] = answers.get()
    child.join()
    assert received == sorted(files)
    assert child.exitcode == 0
    assert names_of([*first, *ours]) == sorted(files)
    assert sorted(
        names_of(path for batch in DataLoader(dataset, 8, num_workers=2) for path in batch)
    ) == sorted(files)


@pytest.mark.parametrize("breaks", [1, 3])
def test_persistent_workers_begin_anew_after_an_epoch_that_was_left(
    volume_dir: Path, cache_dir: Path, files: Files, breaks: int
) -> None:
    dataset = UCVolumeDataset(volume_dir, cache_dir=cache_dir, shuffle=True)
    loader = DataLoader(dataset, 4, num_workers=2)
    for _ in range(breaks):
        assert len(list(islice(loader, 2))) == 2
        epoch = [name for batch in loader for name in names_of(batch)]
        assert sorted(epoch) == sorted(files)
    assert loader.state_dict()["sources"][0]["epoch"] == breaks


@pytest.mark.parametrize("workers", [0, 2])
def test_a_directory_that_changes_between_epochs_shows_its_new_contents(
    volume_dir: Path, cache_dir: Path, files: Files, workers: int
) -> None:
    """Changed files come new, vanished ones are left out, added ones come with a new dataset."""
    dataset = UCVolumeDataset(volume_dir, cache_dir=cache_dir, on_error="skip")
    loader = DataLoader(dataset, 8, num_workers=workers)

    def epoch() -> dict[str, bytes]:
        paths = [path for batch in loader for path in batch]
        return {os.path.basename(path): Path(path).read_bytes() for path in paths}

    assert epoch() == files
    changed, vanished, blocked, *_ = sorted(files)[50:]
    (volume_dir / changed).write_bytes(b"changed")
    (volume_dir / vanished).unlink()
    (volume_dir / blocked).unlink()
    (volume_dir / blocked).mkdir()
    (volume_dir / blocked / "inner.bin").write_bytes(b"inner")
    (volume_dir / "added.bin").write_bytes(b"added")
    del files[vanished], files[blocked]
    files[changed] = b"changed"
    assert epoch() == files
    assert loader.stats()["skipped"] == 2
    recursive = UCVolumeDataset(volume_dir, cache_dir=cache_dir, recursive=True)
    received = [os.path.relpath(path, Path(path).parents[0]) for path in recursive]
    assert sorted(received) == sorted([*files, "added.bin", "inner.bin"])


@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupt_ends_the_job_at_once_and_its_private_cache(
    tmp_path: Path, volume_dir: Path, workers: int
) -> None:
    write_files(volume_dir, 200, 100_000)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    job = subprocess.Popen(
        [sys.executable, *PROGRAM, "endless", str(volume_dir), str(workers)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell lets what it starts in the background ignore it, and that is inherited.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    assert job.stdout is not None
    for _ in range(3):
        next(job.stdout)
    os.killpg(job.pid, signal.SIGINT)  # as the terminal does: to workers too
    _, errors = job.communicate(timeout=30)
    assert "KeyboardInterrupt" in errors
    assert job.returncode != 0
    assert list(temporary.glob("ucfuse-data-*/*")) == []


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that other users may look into, which those of pytest are not."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


def test_a_cache_of_somebody_else_is_named_and_passed_by(
    open_to_all: Path,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    volume, cache = open_to_all / "volume", open_to_all / "cache"
    volume.mkdir()
    files = write_files(volume, 5, 1000)
    list(UCVolumeDataset(volume, cache_dir=cache))
    done = subprocess.run(
        [sys.executable, *PROGRAM, "as-nobody", str(volume), str(cache)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == [str(volume / name) for name in sorted(files)]
    assert f"files are read from {volume} itself" in done.stderr
    # Not of every cache: the first dataset may still fetch ahead when the program loses its rights.
    assert done.stderr.count(f"cache {cache}: ") == 1
    assert len(list(complete_copies(cache))) == len(files)
