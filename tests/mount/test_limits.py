"""Small memory, many readers; a full disk: right bytes, and an error where there is no room."""

import errno
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import Mount, MountVolume
from .programs import fails_with, run, run_python, shell
from .witness import Bucket

MIB = 1 << 20
FILE_BYTES = 256 * MIB
# What the daemon needs beside its buffers: interpreter, libraries, native client.
BEYOND_LIMIT_BYTES = 256 * MIB


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local file in which no two blocks are the same."""
    path = tmp_path_factory.mktemp("original") / "large"
    rng = random.Random(1)
    with path.open("wb") as file:
        for _ in range(FILE_BYTES // (16 * MIB)):
            file.write(rng.randbytes(16 * MIB))
    return path


@pytest.fixture(scope="module")
def large(original: Path, whole_bucket: Bucket) -> Bucket:
    """A directory of the bucket that has the same as an object `large`."""
    place = whole_bucket.below("memory")
    place.put_large("large", original.read_bytes())
    return place


def read_in_many_ways(path: str, original: str, random_readers: str, sequential: str) -> None:
    """Compare pieces at random places and whole passes with the local original."""
    import mmap
    import os
    import random
    import threading

    with open(original, "rb") as file:
        expected = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    size, wrong = len(expected), []

    def read_at_random(seed: int) -> None:
        rng, fd = random.Random(seed), os.open(path, os.O_RDONLY)
        for _ in range(24):
            offset, length = rng.randrange(size), rng.choice([100, 4096, 100_000])
            if os.pread(fd, length, offset) != expected[offset : offset + length]:
                wrong.append((seed, offset))
        os.close(fd)

    def read_through(start: int) -> None:
        fd = os.open(path, os.O_RDONLY)
        offsets = [*range(start, size, 1 << 20), *range(0, start, 1 << 20)]
        wrong.extend(
            ("pass", at)
            for at in offsets
            if os.pread(fd, 1 << 20, at) != expected[at : at + (1 << 20)]
        )
        os.close(fd)

    threads = [
        *(threading.Thread(target=read_at_random, args=(n,)) for n in range(int(random_readers))),
        *(
            threading.Thread(target=read_through, args=(n * size // 8 >> 20 << 20,))
            for n in range(int(sequential))
        ),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:5]


def most_memory_bytes(pid: int) -> int:
    """Return the most that a process ever had in memory."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.promise("P42")
@pytest.mark.parametrize("limit_mib", [64, 1024])
def test_many_readers_get_right_bytes_within_the_memory_limit(
    mount_volume: MountVolume, large: Bucket, original: Path, limit_mib: int
) -> None:
    mount = mount_volume(f"--memory-limit={limit_mib}MiB", place=large)
    run_python(read_in_many_ways, mount.path / "large", original, "64", "8", deadline_s=80)
    assert most_memory_bytes(mount.pid) <= limit_mib * MIB + BEYOND_LIMIT_BYTES
    assert mount.status()["memory"]["reserved_bytes"] <= limit_mib * MIB


@pytest.fixture
def cramped(scratch: Path, environment: dict[str, str], bucket: Bucket) -> Iterator[Mount]:
    """A mount whose state directory is a disk of 16 MiB."""
    work = Path(tempfile.mkdtemp(dir=scratch))
    mount = Mount(bucket, work, environment)
    mount.state_dir.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", mount.state_dir], capture_output=True
    )
    if done.returncode:
        pytest.skip("only root can make a small disk")
    try:
        yield mount.start()
    finally:
        mount.close()
        subprocess.run(["umount", mount.state_dir], check=True)
        sys.stderr.write(mount.log())
    complaints = mount.complaints()
    assert not complaints, complaints


@pytest.mark.promise("P17")
def test_a_full_disk_is_enospc_at_write_and_nothing_short_is_stored(cramped: Mount) -> None:
    """What was there stays; a file that did not fit leaves nothing, and the rest goes on."""
    cramped.bucket.put("old", b"the version before")
    cramped.bucket.put("other", b"of others")
    new = os.open(cramped.path / "new", os.O_WRONLY | os.O_CREAT, 0o644)
    with fails_with(errno.ENOSPC):
        for _ in range(40):
            os.write(new, os.urandom(MIB))
    assert (cramped.path / "other").read_bytes() == b"of others"
    assert "old" in os.listdir(cramped.path)
    with fails_with(errno.ENOSPC):
        os.close(new)
    assert not cramped.bucket.has("new")

    printed = run("dd", "if=/dev/zero", f"of={cramped.path}/old", "bs=1M", "count=40", expect=1)
    assert "No space left on device" in printed
    assert cramped.bucket.get("old") == b"the version before"

    (cramped.path / "after").write_bytes(b"a" * MIB)
    assert cramped.bucket.get("after") == b"a" * MIB
    assert (cramped.path / "old").read_bytes() == b"the version before"
    assert cramped.bucket.files() == {"old", "other", "after"}


@pytest.mark.promise("P17")
def test_an_update_that_does_not_fit_keeps_the_version_before(cramped: Mount) -> None:
    cramped.bucket.put("log", b"line\n" * 1000)
    fd = os.open(cramped.path / "log", os.O_WRONLY | os.O_APPEND)
    with fails_with(errno.ENOSPC):
        for _ in range(40):
            os.write(fd, bytes(MIB))
    with fails_with(errno.ENOSPC):
        os.close(fd)
    assert cramped.bucket.get("log") == b"line\n" * 1000
    shell(f"rm {cramped.path}/log && echo fresh > {cramped.path}/small")
    assert cramped.bucket.get("small") == b"fresh\n"


@pytest.mark.promise("P17")
def test_a_program_that_makes_room_goes_on(cramped: Mount) -> None:
    """After ENOSPC a program cuts its file to what it has, and the close stores that."""
    fd = os.open(cramped.path / "f", os.O_RDWR | os.O_CREAT, 0o644)
    with fails_with(errno.ENOSPC):
        for _ in range(40):
            os.write(fd, b"f" * MIB)
    os.ftruncate(fd, 3 * MIB)
    os.close(fd)
    assert cramped.bucket.get("f") == b"f" * 3 * MIB
    shutil.copyfile(cramped.path / "f", cramped.path / "copy")
    assert cramped.bucket.get("copy") == b"f" * 3 * MIB
