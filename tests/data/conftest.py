"""Fixtures of the data tests: directories of files to read, and a directory for copies.

`volume_dir` is a local directory: anything that ordinary file operations reach will do. `place` is
that or a directory of a mount, for what must hold on both; `mount_volume` is the mount tests' own.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.conftest import (
    bucket,
    environment,
    mount_volume,
    scopes,
    scratch,
    whole_bucket,
)
from tests.mount.harness import MountVolume
from tests.mount.witness import Bucket

from .files import Files, make_files, write_files

__all__ = ["bucket", "environment", "mount_volume", "scopes", "scratch", "whole_bucket"]


@pytest.fixture
def volume_dir(tmp_path: Path) -> Path:
    """An empty directory that stands for a volume."""
    path = tmp_path / "volume"
    path.mkdir()
    return path


@pytest.fixture
def cache_dir(tmp_path: Path) -> Iterator[Path]:
    """Where copies are kept; they do not outlive the test."""
    path = tmp_path / "cache"
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def files(volume_dir: Path) -> Files:
    """101 small files, which do not divide by anything, and what is in them."""
    return write_files(volume_dir, 101, 2000)


@pytest.fixture
def stored(bucket: Bucket) -> Files:
    """The same files as objects of the test's bucket."""
    files = make_files(101, 2000)
    for name, content in files.items():
        bucket.put(name, content)
    return files


@pytest.fixture(params=["local", "mount"])
def place(request: pytest.FixtureRequest, volume_dir: Path) -> tuple[Path, Files]:
    """101 files on a local disk, then on a mount: the directory, and what is in it."""
    if request.param == "local":
        return volume_dir, write_files(volume_dir, 101, 2000)
    files: Files = request.getfixturevalue("stored")
    start: MountVolume = request.getfixturevalue("mount_volume")
    mount = start()
    mount.watch_again(seconds=1200)
    return mount.path, files
