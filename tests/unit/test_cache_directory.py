"""The files of the disk cache: nothing damaged is served, and the limit holds."""

import errno
import fcntl
import os
import random
import shutil
import signal
import stat
from collections import deque
from contextlib import suppress
from itertools import count
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from ucfuse.errors import ConfigError
from ucfuse.reading.cache_directory import FOLDER, CacheFiles
from ucfuse.reading.pieces import Piece
from ucfuse.store.api import Buffer
from ucfuse.volume import KiB, MiB

ORIGIN = ("https://store", "bucket", "a/b.bin", '"etag"', "1000000")


def piece(number: int, size: int = 8 * KiB, origin: tuple[str, ...] = ORIGIN) -> Piece:
    return Piece(origin, number * size, (number + 1) * size)


def data_of(wanted: Piece) -> bytes:
    return random.Random(wanted.name).randbytes(wanted.stop - wanted.start)


def store(files: CacheFiles, *pieces: Piece) -> None:
    for each in pieces:
        assert files.write(each, data_of(each))


def held(files: CacheFiles, wanted: Piece) -> bool:
    """Whether the piece is there; what is there must be right."""
    data = files.read(wanted)
    assert data is None or data == data_of(wanted)
    return data is not None


def on_disk(directory: Path) -> int:
    """What all pieces and drafts take, in whole blocks.

    Under the lock none comes; a draft that becomes a piece meanwhile counts once.
    """
    sizes: dict[int, int] = {}
    with (directory / FOLDER / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for path in (directory / FOLDER).iterdir():
            with suppress(FileNotFoundError):  # of another process
                if path.suffix == ".part" or path.name.startswith("draft-"):
                    found = path.stat()
                    sizes[found.st_ino] = -(-found.st_size // 4096) * 4096
    return sum(sizes.values())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def files(directory: Path) -> CacheFiles:
    clock = count(1)
    return CacheFiles(directory, 1 * MiB, lambda: next(clock))


def test_a_piece_comes_back_also_in_the_next_process(files: CacheFiles, directory: Path) -> None:
    """What was kept survives a restart."""
    store(files, piece(0))

    assert held(CacheFiles(directory, 1 * MiB), piece(0))


@pytest.mark.parametrize(
    "other",
    [
        Piece(("https://other", *ORIGIN[1:]), 0, 8 * KiB),
        Piece(("https://store", "other", *ORIGIN[2:]), 0, 8 * KiB),
        Piece((*ORIGIN[:2], "a/c.bin", *ORIGIN[3:]), 0, 8 * KiB),
        Piece((*ORIGIN[:3], '"other"', ORIGIN[4]), 0, 8 * KiB),
        Piece((*ORIGIN[:1], "bucketa", "/b.bin", *ORIGIN[3:]), 0, 8 * KiB),
        Piece(ORIGIN, 0, 4 * KiB),
        Piece(ORIGIN, 8 * KiB, 16 * KiB),
    ],
    ids=["store", "bucket", "key", "version", "boundary of the names", "end", "range"],
)
def test_another_piece_is_never_taken_for_this_one(files: CacheFiles, other: Piece) -> None:
    """Bytes are those of one range of one version of one key, of one bucket of one store."""
    store(files, piece(0))

    assert files.read(other) is None


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_a_flipped_bit_is_never_served(files: CacheFiles, directory: Path) -> None:
    """Wherever a bit flips, in bytes, head or checksum: it is a miss, and the file is gone."""
    seed = random.randrange(1 << 32)
    rng, wanted = random.Random(seed), piece(0)
    path = directory / FOLDER / wanted.name
    for _ in range(1000):
        store(files, wanted)
        flip(path, rng.randrange(path.stat().st_size * 8))

        assert files.read(wanted) is None, f"seed {seed}"
        assert not path.exists(), f"seed {seed}"
    assert files.used_bytes == 0


def test_every_bit_of_a_head_matters(files: CacheFiles, directory: Path) -> None:
    """What a piece is of is under the checksum too."""
    wanted = piece(0)
    path = directory / FOLDER / wanted.name
    for bit in range(8 * len(wanted.head)):
        store(files, wanted)
        flip(path, bit)

        assert files.read(wanted) is None


def test_a_file_under_another_name_is_not_served(files: CacheFiles, directory: Path) -> None:
    """A name that changed on the disk does not make bytes those of another file."""
    store(files, piece(0))
    folder = directory / FOLDER
    os.rename(folder / piece(0).name, folder / piece(1).name)

    assert files.read(piece(1)) is None
    assert not (folder / piece(1).name).exists()


@pytest.mark.parametrize("left", [0, 1, 100, 8 * KiB - 1])
def test_a_truncated_file_is_not_served(files: CacheFiles, directory: Path, left: int) -> None:
    """Also a file that a failing disk cut off is a miss, and is removed."""
    store(files, piece(0))
    path = directory / FOLDER / piece(0).name
    os.truncate(path, left)

    assert files.read(piece(0)) is None
    assert not path.exists()


def test_what_was_used_longest_ago_goes_first(directory: Path) -> None:
    """Least used first out: reading counts as use."""
    clock = count(1)
    size = 64 * KiB
    files = CacheFiles(directory, 3 * (size + 4 * KiB), lambda: next(clock))
    first, second, third, fourth = (piece(n, size) for n in range(4))
    store(files, first, second, third)
    assert held(files, first)

    store(files, fourth)

    assert [held(files, each) for each in (first, second, third, fourth)] == [
        True,
        False,
        True,
        True,
    ]


def test_the_limit_is_never_exceeded(directory: Path) -> None:
    """Small files count with the blocks that they take, and those being written count too."""
    files = CacheFiles(directory, 256 * KiB)
    for number in range(200):
        files.write(piece(number, 1 + number * 37 % (20 * KiB)), b"x" * (1 + number * 37 % 20480))

        assert on_disk(directory) <= 256 * KiB
        assert files.used_bytes == on_disk(directory)


def test_two_mounts_share_one_limit(directory: Path) -> None:
    """Whoever stores sees what the other has stored, and may remove it."""
    one, two = (CacheFiles(directory, 256 * KiB) for _ in range(2))
    for number in range(60):
        store(one if number % 2 else two, piece(number))

        assert on_disk(directory) <= 256 * KiB
    for mount in (one, two):
        assert held(mount, piece(59))
        assert held(mount, piece(58))
        assert not held(mount, piece(0))


def test_a_smaller_limit_than_before_is_kept_at_once(files: CacheFiles, directory: Path) -> None:
    """A mount with a smaller SIZE shrinks what the last one left."""
    store(files, *(piece(n) for n in range(50)))

    smaller = CacheFiles(directory, 100 * KiB)
    smaller.fit()

    assert on_disk(directory) <= 100 * KiB
    assert held(smaller, piece(49))


def test_a_piece_larger_than_the_cache_is_not_kept(directory: Path) -> None:
    """And nothing is removed for it."""
    files = CacheFiles(directory, 64 * KiB)
    store(files, piece(0))

    assert not files.write(piece(1, 64 * KiB), bytes(64 * KiB))

    assert held(files, piece(0))


def test_what_a_killed_writer_left_goes_when_room_is_needed(directory: Path) -> None:
    """A draft counts while its writer lives; afterwards it is removed."""
    files = CacheFiles(directory, 128 * KiB)
    living, dead = (directory / FOLDER / f"draft-{name}" for name in ("living", "dead"))
    for draft in (living, dead):
        draft.write_bytes(bytes(32 * KiB))
    with living.open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)

        for number in range(40):
            store(files, piece(number))
            files.fit()

        assert living.exists()
        assert not dead.exists()
        assert on_disk(directory) <= 128 * KiB


def test_what_is_read_while_room_is_made_still_counts(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading takes no lock, so a piece can become the newest when it was about to go."""
    clock = count(1)
    files = CacheFiles(directory, 120 * KiB, lambda: next(clock))
    store(files, *(piece(number) for number in range(10)))
    seldom = [piece(0), piece(1)]
    scandir = os.scandir

    def read_then_scan(path: Path) -> object:
        if seldom:
            assert held(files, seldom.pop())
        return scandir(path)

    monkeypatch.setattr(os, "scandir", read_then_scan)
    for number in range(10, 16):
        store(files, piece(number))

        assert files.used_bytes == on_disk(directory) <= 120 * KiB


def test_a_piece_finds_no_room_beside_those_that_are_being_written(directory: Path) -> None:
    answers: list[bool] = []

    def pwrite(fd: int, data: Buffer, offset: int) -> int:
        if not answers:
            answers.append(True)
            answers[0] = CacheFiles(directory, 16 * KiB).write(piece(1), data_of(piece(1)))
        return os.pwrite(fd, data, offset)

    files = CacheFiles(directory, 16 * KiB, pwrite=pwrite)

    assert files.write(piece(0), data_of(piece(0)))

    assert answers == [False]
    assert held(files, piece(0))
    assert files.used_bytes == on_disk(directory) == 12 * KiB


def work_for_ever(directory: Path, seed: int) -> None:
    """Be a mount that reads and keeps pieces; end with 1 at the first wrong byte."""
    files, rng = CacheFiles(directory, 512 * KiB), random.Random(seed)
    while True:
        wanted = piece(rng.randrange(100))
        if not held(files, wanted):
            files.write(wanted, data_of(wanted))


def test_mounts_that_are_killed_at_any_time_leave_nothing_wrong(directory: Path) -> None:
    """kill -9 of one of several: no wrong byte, never over the limit, the count stays exact."""
    CacheFiles(directory, 512 * KiB)
    usage, context = directory / FOLDER / "usage", get_context("fork")
    mounts: deque[BaseProcess] = deque()
    try:
        for number in range(15):
            mounts.append(context.Process(target=work_for_ever, args=(directory, number)))
            mounts[-1].start()
            for _ in range(number):  # so that each is killed at another moment
                before = usage.stat().st_mtime_ns
                while usage.stat().st_mtime_ns == before:
                    assert on_disk(directory) <= 512 * KiB
                    assert all(mount.is_alive() for mount in mounts)
            if len(mounts) > 2:
                killed = mounts.popleft()
                killed.kill()
                killed.join()
                assert killed.exitcode == -signal.SIGKILL
    finally:
        for mount in mounts:
            mount.kill()
            mount.join()
    files = CacheFiles(directory, 256 * KiB)
    files.fit()
    assert files.used_bytes == on_disk(directory) <= 256 * KiB


@pytest.mark.parametrize("content", [None, b"", b"12", b"0 1", b"99999999999 0", b"\xff\xfe"])
def test_a_damaged_count_is_counted_anew(directory: Path, content: bytes | None) -> None:
    """What the files take together is known even if the note of it is lost."""
    files = CacheFiles(directory, 128 * KiB)
    store(files, *(piece(n) for n in range(9)))
    usage = directory / FOLDER / "usage"
    usage.unlink() if content is None else usage.write_bytes(content)

    for number in range(9, 40):
        store(files, piece(number))

        assert on_disk(directory) <= 128 * KiB
    assert held(files, piece(39))


def test_directory_is_private(files: CacheFiles, directory: Path) -> None:
    """Other users see nothing of what was read here."""
    store(files, piece(0))

    for path in (directory, directory / FOLDER):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in (directory / FOLDER).iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_directory_that_others_can_write_to_is_refused(directory: Path) -> None:
    """Or another user could put files there."""
    (directory / FOLDER).mkdir(parents=True)
    (directory / FOLDER).chmod(0o770)

    with pytest.raises(ConfigError, match="--cache-dir"):
        CacheFiles(directory, MiB)


def test_directory_that_cannot_be_made_is_an_error_with_a_mend(tmp_path: Path) -> None:
    """One line names the directory, the reason and the option."""
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(ConfigError, match=r"file/cache: .*Not a directory; .*--cache-dir"):
        CacheFiles(tmp_path / "file/cache", MiB)


def test_foreign_files_in_the_directory_stay(directory: Path) -> None:
    """Only what the cache made is ever removed."""
    directory.mkdir()
    (directory / "mine").write_bytes(b"my thesis")
    files = CacheFiles(directory, 64 * KiB)
    (directory / FOLDER / "note").write_bytes(b"also mine")

    store(files, *(piece(n) for n in range(30)))

    assert (directory / "mine").read_bytes() == b"my thesis"
    assert (directory / FOLDER / "note").read_bytes() == b"also mine"


def test_full_disk_leaves_nothing_half_written(directory: Path) -> None:
    """The room that was claimed is given back, and the next piece may fit."""
    room = 4 * KiB

    def pwrite(fd: int, data: Buffer, offset: int) -> int:
        if offset >= room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.pwrite(fd, memoryview(data)[: room - offset], offset)

    files = CacheFiles(directory, MiB, pwrite=pwrite)
    with pytest.raises(OSError, match="No space left"):
        files.write(piece(0), data_of(piece(0)))

    assert on_disk(directory) == files.used_bytes == 0
    room = 64 * KiB
    store(files, piece(0))
    assert held(files, piece(0))


def test_directory_that_was_removed_is_made_again(files: CacheFiles, directory: Path) -> None:
    """A user may empty the cache by hand: one piece is lost, the next one is kept."""
    store(files, piece(0))
    shutil.rmtree(directory)

    assert files.read(piece(0)) is None
    with pytest.raises(FileNotFoundError):
        files.write(piece(1), data_of(piece(1)))
    store(files, piece(2))

    assert held(files, piece(2))
    assert files.used_bytes == on_disk(directory)
