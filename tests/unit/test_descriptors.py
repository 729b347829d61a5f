"""What /proc tells of descriptors, with real processes on a real (not our) file system."""

import os
import threading
from pathlib import Path

import pytest

from ucfuse.kernel.descriptors import ProcDescriptors
from ucfuse.kernel.mountinfo import mounts_of
from ucfuse.volume import InodeNo

ME = os.getpid()
NOBODY = 2**22 + 1  # above the largest pid that Linux gives out


def mount_of(path: Path) -> Path:
    """Return the mount point below which `path` lies."""
    return max(
        (entry.target for entry in mounts_of() if path.is_relative_to(entry.target)),
        key=lambda target: len(target.parts),
    )


@pytest.fixture
def probe(tmp_path: Path) -> ProcDescriptors:
    """A probe that takes the file system of the temporary directory for our mount."""
    return ProcDescriptors(mount_of(tmp_path.resolve()))


def number_of(path: Path) -> InodeNo:
    return InodeNo(path.stat().st_ino)


def test_descriptors_open_for_writing_are_counted_also_duplicates(
    probe: ProcDescriptors, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file, path.open("rb"):
        number = number_of(path)
        assert probe.count_writable(ME, number) == 1
        copy = os.dup(file.fileno())
        assert probe.count_writable(ME, number) == 2
        os.close(copy)
        assert probe.count_writable(ME, number) == 1
    assert probe.count_writable(ME, number) == 0


def test_append_and_read_write_count_as_writing(probe: ProcDescriptors, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with path.open("ab"), path.open("r+b"):
        assert probe.count_writable(ME, number_of(path)) == 2


def test_what_a_forked_child_holds_is_not_the_openers(
    probe: ProcDescriptors, tmp_path: Path
) -> None:
    """A child that inherits the descriptor and exits must not look like the last close."""
    path = tmp_path / "file"
    reader, writer = os.pipe()
    with path.open("wb") as file:
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)  # until the parent has looked
            os._exit(0)
        os.close(reader)
        try:
            number = number_of(path)
            assert probe.count_writable(child, number) == 1
            file.close()
            assert probe.count_writable(ME, number) == 0
            assert probe.count_writable(child, number) == 1
        finally:
            os.close(writer)
            os.waitpid(child, 0)


def test_the_same_number_on_another_device_does_not_count(
    probe: ProcDescriptors,
) -> None:
    """/dev/null has a small inode number, and programs have it open three times."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        number = InodeNo(os.fstat(null).st_ino)
        assert probe.count_writable(ME, number) == 0
        assert ProcDescriptors(mount_of(Path(os.devnull))).count_writable(ME, number) in range(1, 9)
    finally:
        os.close(null)


def test_a_program_that_is_gone_cannot_be_counted(probe: ProcDescriptors, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert probe.count_writable(NOBODY, number_of(tmp_path / "file")) is None


def test_without_our_mount_nothing_can_be_counted(tmp_path: Path) -> None:
    assert ProcDescriptors(tmp_path).count_writable(ME, InodeNo(3)) is None


def test_a_thread_leads_to_its_process(probe: ProcDescriptors) -> None:
    openers: list[int | None] = []
    thread = threading.Thread(
        target=lambda: openers.append(probe.opener_of(threading.get_native_id()))
    )
    thread.start()
    thread.join()
    assert openers == [ME]
    assert thread.native_id != ME


def test_a_thread_is_led_to_its_process_again_and_to_none_once_it_is_gone(
    probe: ProcDescriptors,
) -> None:
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    assert thread.native_id is not None
    assert [probe.opener_of(thread.native_id) for _ in range(2)] == [ME, ME]
    ends.set()
    thread.join()
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):
        pass  # join returns a moment before the kernel's thread has ended
    assert probe.opener_of(thread.native_id) is None


@pytest.mark.parametrize("thread", [0, NOBODY])
def test_a_thread_that_is_gone_or_elsewhere_has_no_opener(
    probe: ProcDescriptors, thread: int
) -> None:
    """0: the program lives in another pid namespace."""
    assert probe.opener_of(thread) is None
