"""The disk cache of a real mount: right after a crash, shared, and refused in one line."""

import hashlib
import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from .harness import Mount, MountVolume, is_mounted, ucfuse
from .programs import eventually, start_python
from .witness import Bucket

FOLDER = "ucfuse-parts"
BIG = random.Random(11).randbytes(48 << 20)


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached_bytes(cache_dir: Path) -> int:
    """Bytes of the complete files."""
    total = 0
    for path in (cache_dir / FOLDER).glob("*.part"):
        with suppress(FileNotFoundError):  # evicted meanwhile
            total += path.stat().st_size
    return total


def read_it(path: str) -> None:
    with open(path, "rb") as file:
        while file.read(1 << 20):
            pass


def drop_page_cache() -> None:
    """Let the next read come to the daemon again, where the test may do that."""
    with suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("1")


def kept(mount: Mount, size: int) -> None:
    """Wait until that much is in the cache for good."""
    eventually(
        f"{size} bytes in the cache",
        lambda: mount.status()["disk_cache"]["bytes_written"] >= size,
    )


def test_status_tells_what_the_cache_did(mount_volume: MountVolume, cache_dir: Path) -> None:
    """Hits, misses and bytes; after a restart nothing is received any more."""
    mount = mount_volume("--disk-cache=1GiB", f"--cache-dir={cache_dir}")
    mount.bucket.put("big", BIG)
    wanted = hashlib.sha256(BIG).hexdigest()
    assert digest_of(mount.path / "big") == wanted
    kept(mount, len(BIG))
    told = mount.status()["disk_cache"]
    assert told["limit_bytes"] == 1 << 30
    assert told["hits"] == 0
    assert told["misses"] > 0
    assert told["bytes_written"] == len(BIG)
    assert len(BIG) <= told["used_bytes"] <= len(BIG) * 1.02

    mount.remount()

    assert digest_of(mount.path / "big") == wanted
    status = mount.status()
    assert status["store_bytes_received"] == 0
    assert status["disk_cache"]["misses"] == 0
    assert status["disk_cache"]["bytes_read"] == len(BIG)
    assert "disk cache" in ucfuse("status", environment=mount.environment).stdout


@pytest.mark.parametrize("kill_at", [1 << 20, 12 << 20, 30 << 20])
def test_bytes_are_right_after_a_crash_in_mid_filling(
    mount_volume: MountVolume, cache_dir: Path, kill_at: int
) -> None:
    """Whatever kill -9 left is right or is not there, and what is there is used."""
    mount = mount_volume("--disk-cache=1GiB", f"--cache-dir={cache_dir}")
    mount.bucket.put("big", BIG)
    with start_python(read_it, mount.path / "big"):
        eventually("the cache to fill", lambda: cached_bytes(cache_dir) >= kill_at)
        mount.kill()
    left = cached_bytes(cache_dir)

    mount.start()

    assert digest_of(mount.path / "big") == hashlib.sha256(BIG).hexdigest()
    assert mount.status()["store_bytes_received"] <= len(BIG) + (1 << 20) - left * 0.9


def test_two_mounts_share_a_directory_that_is_too_small_for_both(
    mount_volume: MountVolume, cache_dir: Path, bucket: Bucket
) -> None:
    """They remove each other's files, keep one limit, and never read a wrong byte."""
    limit = 24 << 20
    options = (f"--disk-cache={limit >> 20}MiB", f"--cache-dir={cache_dir}", "--metadata-ttl=0s")
    files = {f"f{n}": BIG[n << 20 : (n + 7) << 20] for n in range(8)}
    for name, data in files.items():
        bucket.put(name, data)
    one, two = mount_volume(*options), mount_volume(*options)

    for _ in range(3):
        for name, data in files.items():
            for mount in (one, two):
                assert (mount.path / name).read_bytes() == data
                drop_page_cache()
            assert cached_bytes(cache_dir) <= limit

    served = [mount.status()["disk_cache"]["bytes_read"] for mount in (one, two)]
    assert max(served) > 0


def test_cache_that_vanishes_is_no_error_of_a_program(
    mount_volume: MountVolume, cache_dir: Path
) -> None:
    """Emptying it by hand is allowed at any time."""
    mount = mount_volume("--disk-cache=1GiB", f"--cache-dir={cache_dir}")
    for name in ("a", "b", "c"):
        mount.bucket.put(name, BIG[: 3 << 20])
    assert (mount.path / "a").read_bytes() == BIG[: 3 << 20]

    shutil.rmtree(cache_dir, ignore_errors=True)

    for name in ("a", "b", "c"):
        assert (mount.path / name).read_bytes() == BIG[: 3 << 20]


@pytest.mark.parametrize("foreground", [False, True])
def test_cache_directory_that_cannot_be_used_is_refused_in_one_line(
    scratch: Path, bucket: Bucket, environment: dict[str, str], tmp_path: Path, foreground: bool
) -> None:
    """At the mount, with the directory, the reason and the option."""
    (tmp_path / "file").touch()
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()

    done = ucfuse(
        *("mount", *(["--foreground"] if foreground else [])),
        *("--disk-cache=1GiB", f"--cache-dir={tmp_path}/file/cache", bucket.source, mountpoint),
        environment=environment,
    )

    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "file/cache: cannot be used as a cache: Not a directory" in done.stderr
    assert "--cache-dir" in done.stderr
    assert not is_mounted(mountpoint)
