"""The same system calls on the mount and on a local disk: the same results and the same errnos.

Each case is done in a fresh directory on both. Where the mount is different on purpose, the case
is in `DEVIATIONS` with what the mount does and the words by which the README tells of it.
"""

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from .harness import ROOT, Mount

Act = Callable[[Path], object]

OPEN_FLAGS = {
    "O_RDONLY": os.O_RDONLY,
    "O_WRONLY": os.O_WRONLY,
    "O_RDWR": os.O_RDWR,
    "O_RDONLY|O_CREAT": os.O_RDONLY | os.O_CREAT,
    "O_WRONLY|O_CREAT": os.O_WRONLY | os.O_CREAT,
    "O_WRONLY|O_CREAT|O_EXCL": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
    "O_RDWR|O_CREAT|O_TRUNC": os.O_RDWR | os.O_CREAT | os.O_TRUNC,
    "O_WRONLY|O_TRUNC": os.O_WRONLY | os.O_TRUNC,
    "O_RDWR|O_APPEND": os.O_RDWR | os.O_APPEND,
    "O_RDONLY|O_DIRECTORY": os.O_RDONLY | os.O_DIRECTORY,
    "O_RDONLY|O_NOFOLLOW": os.O_RDONLY | os.O_NOFOLLOW,
    "O_PATH": os.O_PATH,
}
NAMES = ["file", "empty", "dir", "full", "missing", "file/below", "missing/below", "file/", "new/"]
LONG = "n" * 256


def prepare(directory: Path) -> None:
    (directory / "file").write_bytes(b"hello")
    (directory / "empty").touch()
    (directory / "dir").mkdir()
    (directory / "full").mkdir()
    (directory / "full/inner").write_bytes(b"inner")


def tree(directory: Path) -> dict[str, bytes | None]:
    """Return every file with its bytes; directories, pipes and devices with None."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


def errno_or(act: Callable[[], object]) -> object:
    try:
        return act()
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def at(directory: Path, name: str) -> str:
    return f"{directory}/{name}"  # a Path would lose the slash at the end


# --- the acts ------------------------------------------------------------------------------------


def open_and_use(name: str, flags: int, directory: Path) -> object:
    fd = os.open(at(directory, name), flags, 0o644)
    try:
        kind = stat.S_IFMT(os.fstat(fd).st_mode)
        used = [errno_or(lambda: os.read(fd, 3)), errno_or(lambda: os.write(fd, b"XY"))]
        return kind, used, errno_or(lambda: os.ftruncate(fd, 4))
    finally:
        os.close(fd)


def rename(old: str, new: str, directory: Path) -> None:
    os.rename(at(directory, old), at(directory, new))


def by_path(call: Callable[..., object], name: str, *rest: object, directory: Path) -> object:
    return call(at(directory, name), *rest)


def with_open(flags: int, use: Callable[[int], object], directory: Path) -> object:
    fd = os.open(at(directory, "file"), flags)
    try:
        return errno_or(lambda: use(fd))
    finally:
        os.close(fd)


def two_paths(call: Callable[[str, str], object], old: str, new: str, directory: Path) -> object:
    return call(at(directory, old), at(directory, new))


def permission_bits(name: str, mode: int, directory: Path) -> int:
    os.chmod(at(directory, name), mode)
    return stat.S_IMODE(os.stat(at(directory, name)).st_mode)


def owner(name: str, number: int, directory: Path) -> int:
    os.chown(at(directory, name), number, number)
    return os.stat(at(directory, name)).st_uid


def set_times(name: str, ns: tuple[int, int], directory: Path) -> int:
    os.utime(at(directory, name), ns=ns)
    return os.stat(at(directory, name)).st_mtime_ns


def modes_of(name: str, directory: Path) -> tuple[int, int, int]:
    found = os.stat(at(directory, name))
    return stat.S_IFMT(found.st_mode), found.st_size if name != "dir" else 0, found.st_nlink


def unlinked_but_open(directory: Path) -> object:
    fd = os.open(at(directory, "file"), os.O_RDWR)
    os.unlink(at(directory, "file"))
    os.pwrite(fd, b"J", 0)
    told = os.pread(fd, 10, 0), os.fstat(fd).st_size, os.fstat(fd).st_nlink
    os.close(fd)
    return told


def renamed_over_but_open(directory: Path) -> object:
    fd = os.open(at(directory, "file"), os.O_RDONLY)
    first = os.pread(fd, 10, 0)
    os.rename(at(directory, "full/inner"), at(directory, "file"))
    told = first, os.pread(fd, 10, 0), os.fstat(fd).st_nlink
    os.close(fd)
    return told


def two_descriptors(directory: Path) -> object:
    one = os.open(at(directory, "file"), os.O_RDWR)
    two = os.open(at(directory, "file"), os.O_RDWR)
    os.write(one, b"abc")
    told = os.read(two, 10)
    os.ftruncate(two, 1)
    told += os.pread(one, 10, 0)
    os.close(one)
    os.close(two)
    return told


def through_a_duplicate(directory: Path) -> object:
    fd = os.open(at(directory, "file"), os.O_RDWR)
    other = os.dup(fd)
    os.write(fd, b"12")
    os.write(other, b"34")
    os.close(fd)
    os.write(other, b"56")
    os.close(other)
    return None


def listed(name: str, directory: Path) -> list[str]:
    return sorted(os.listdir(at(directory, name)))


def entered(name: str, directory: Path) -> str:
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.chdir(at(directory, name))
        return os.path.relpath(os.getcwd(), os.path.realpath(directory))
    finally:
        os.fchdir(fd)
        os.close(fd)


def relative_to_descriptor(directory: Path) -> object:
    fd = os.open(at(directory, "full"), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.rename("inner", "outer", src_dir_fd=fd, dst_dir_fd=fd)
        os.mkdir("sub", dir_fd=fd)
        return os.stat("outer", dir_fd=fd).st_size
    finally:
        os.close(fd)


def temporary(directory: Path) -> None:
    os.close(os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o600))


# --- the cases -----------------------------------------------------------------------------------


def path_cases() -> Iterator[tuple[str, Act]]:
    calls: dict[str, Callable[..., object]] = {
        "unlink": os.unlink, "rmdir": os.rmdir, "mkdir": os.mkdir, "listdir": os.listdir,
        "readlink": os.readlink, "lstat": lambda path: stat.S_IFMT(os.lstat(path).st_mode),
    }  # fmt: skip
    for name in [*NAMES, LONG, "full/../file", "."]:
        for title, call in calls.items():
            if title == "listdir" and name in ("full", "."):
                continue  # in any order: `listed`
            if name != "." or title in ("mkdir", "lstat"):
                yield f"{title} {name[:20]}", _by_path(call, name)


def _by_path(call: Callable[..., object], name: str, *rest: object) -> Act:
    return lambda directory: by_path(call, name, *rest, directory=directory)


def rename_cases() -> Iterator[tuple[str, Act]]:
    targets = ["file", "empty", "dir", "full", "new", "full/inner", "missing/x", "file/x", LONG]
    for old in ["file", "dir", "full", "missing", "full/inner", "file/x"]:
        for new in targets:
            yield f"rename {old} to {new[:20]}", partial(rename, old, new)
    yield "rename dir below itself", partial(rename, "full", "full/deeper")
    yield "rename a file onto a slash", partial(rename, "file", "new/")


def truncate_cases() -> Iterator[tuple[str, Act]]:
    for name in ["file", "empty", "dir", "missing", "file/x"]:
        for size in (0, 2, 5, 5000, -1):
            yield f"truncate {name} to {size}", _by_path(os.truncate, name, size)


def open_cases() -> Iterator[tuple[str, Act]]:
    for title, flags in OPEN_FLAGS.items():
        for name in NAMES:
            yield f"open {name} {title}", partial(open_and_use, name, flags)
    yield "open O_TMPFILE", temporary


def attribute_cases() -> Iterator[tuple[str, Act]]:
    for name in ["file", "dir", "missing", "file/x"]:
        yield f"chmod {name}", partial(permission_bits, name, 0o600)
        yield f"chown {name}", partial(owner, name, 12345)
        yield f"utime {name}", partial(set_times, name, (10**18, 10**18))
        yield f"stat {name}", partial(modes_of, name)
        for mode in (os.F_OK, os.R_OK, os.W_OK, os.X_OK):
            if (name, mode) != ("file", os.X_OK):  # a matter of the modes, which chmod covers
                yield f"access {name} {mode}", _by_path(os.access, name, mode)
        yield f"setxattr {name}", _by_path(os.setxattr, name, "user.x", b"1")
        yield f"listxattr {name}", _by_path(os.listxattr, name)


def kind_cases() -> Iterator[tuple[str, Act]]:
    yield "link", partial(two_paths, os.link, "file", "hard")
    yield "symlink", partial(two_paths, os.symlink, "file", "soft")
    yield "mkfifo", _by_path(os.mkfifo, "fifo")
    yield "mknod a device", _by_path(os.mknod, "device", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    yield "mknod a file", _by_path(os.mknod, "node", 0o600 | stat.S_IFREG)
    yield "mknod over a file", _by_path(os.mknod, "file", 0o600 | stat.S_IFREG)
    yield "link to what is missing", partial(two_paths, os.link, "missing", "hard")


def descriptor_cases() -> Iterator[tuple[str, Act]]:
    uses: dict[str, tuple[int, Callable[[int], object]]] = {
        "read past the end": (os.O_RDONLY, lambda fd: os.pread(fd, 10, 100)),
        "read across the end": (os.O_RDONLY, lambda fd: os.pread(fd, 10, 3)),
        "read at a negative offset": (os.O_RDONLY, lambda fd: os.pread(fd, 10, -1)),
        "write past the end": (os.O_RDWR, lambda fd: os.pwrite(fd, b"far", 9000)),
        "write nothing": (os.O_RDWR, lambda fd: os.write(fd, b"")),
        "write read-only": (os.O_RDONLY, lambda fd: os.write(fd, b"x")),
        "read write-only": (os.O_WRONLY, lambda fd: os.read(fd, 1)),
        "truncate read-only": (os.O_RDONLY, lambda fd: os.ftruncate(fd, 0)),
        "truncate below zero": (os.O_RDWR, lambda fd: os.ftruncate(fd, -1)),
        "append": (os.O_WRONLY | os.O_APPEND, lambda fd: os.write(fd, b" world")),
        "append ignores the place": (
            os.O_WRONLY | os.O_APPEND,
            lambda fd: (os.lseek(fd, 0, 0), os.write(fd, b"!"))[1],
        ),
        "seek to the end": (os.O_RDONLY, lambda fd: os.lseek(fd, -2, os.SEEK_END)),
        "seek before the beginning": (os.O_RDONLY, lambda fd: os.lseek(fd, -9, os.SEEK_END)),
        "seek to data": (os.O_RDONLY, lambda fd: os.lseek(fd, 1, os.SEEK_DATA)),
        "seek to a hole": (os.O_RDONLY, lambda fd: os.lseek(fd, 0, os.SEEK_HOLE)),
        "seek to data past the end": (os.O_RDONLY, lambda fd: os.lseek(fd, 99, os.SEEK_DATA)),
        "fsync": (os.O_RDWR, os.fsync),
        "fdatasync read-only": (os.O_RDONLY, os.fdatasync),
        "fchmod": (os.O_RDWR, lambda fd: os.fchmod(fd, 0o755)),
        "vector write": (os.O_RDWR, lambda fd: os.writev(fd, [b"a", b"bc", b""])),
        "vector read": (os.O_RDONLY, lambda fd: os.readv(fd, [bytearray(2), bytearray(9)])),
        "reserve space": (os.O_RDWR, lambda fd: os.posix_fallocate(fd, 0, 100)),
        "list a file's descriptor": (os.O_RDONLY, os.listdir),
    }
    for title, (flags, use) in uses.items():
        yield title, partial(with_open, flags, use)
    yield "unlinked but open", unlinked_but_open
    yield "renamed over but open", renamed_over_but_open
    yield "two descriptors", two_descriptors
    yield "a duplicate", through_a_duplicate
    yield "names relative to a descriptor", relative_to_descriptor
    for name in ["full", ".", "dir"]:
        yield f"listdir {name} in order", partial(listed, name)
    for name in ["dir", "file", "missing", "full/.."]:
        yield f"chdir {name}", partial(entered, name)


CASES: dict[str, Act] = {
    title: act
    for group in (
        path_cases, rename_cases, truncate_cases, open_cases, attribute_cases, kind_cases,
        descriptor_cases,
    )
    for title, act in group()
}  # fmt: skip

# What the mount does instead, and where the README says so.
NO_LINKS = "No hard links, symbolic links or devices (EPERM)"
NO_XATTRS = "extended attributes"
NO_MODES = "chmod, chown and utime succeed without effect"
NO_TEMPORARY = "O_TMPFILE is refused (EOPNOTSUPP)"
SUCCEEDS = object()
"""Success, with another result than on a disk."""
DEVIATIONS: dict[str, tuple[object, str]] = {
    "link": ("EPERM", NO_LINKS),
    "symlink": ("EPERM", NO_LINKS),
    "mkfifo": ("EPERM", NO_LINKS),
    "mknod a device": ("EPERM", NO_LINKS),
    "open O_TMPFILE": ("ENOTSUP", NO_TEMPORARY),
    **{
        f"{what} {name}": (SUCCEEDS, NO_MODES)
        for what in ("chmod", "chown", "utime")
        for name in ("file", "dir")
    },
    **{
        f"{what} {name}": ("ENOTSUP", NO_XATTRS)
        for what in ("setxattr", "listxattr")
        for name in ("file", "dir")
    },
}


@pytest.fixture(scope="module")
def memory_mount(scratch: Path, environment: dict[str, str]) -> Iterator[Mount]:
    """A mount of the daemon's own memory: what is tested here is between kernel and daemon."""
    mount = Mount(None, Path(tempfile.mkdtemp(dir=scratch)), environment).start()
    yield mount
    mount.close()
    complaints = mount.complaints()
    assert not complaints, complaints


def outcome(act: Act, directory: Path) -> tuple[object, dict[str, bytes | None]]:
    prepare(directory)
    result = errno_or(lambda: act(directory))
    return result, tree(directory)


@pytest.mark.promise("P33")
@pytest.mark.parametrize("title", CASES)
def test_it_does_as_a_local_disk_or_as_the_readme_says(
    memory_mount: Mount, tmp_path: Path, title: str
) -> None:
    memory_mount.watch_again()
    here = Path(tempfile.mkdtemp(dir=memory_mount.path))
    got, left = outcome(CASES[title], here)
    expected, expected_left = outcome(CASES[title], tmp_path)
    if title not in DEVIATIONS:
        assert (got, left) == (expected, expected_left)
        return
    instead, words = DEVIATIONS[title]
    assert isinstance(got, int) if instead is SUCCEEDS else got == instead
    assert got != expected, "no deviation any more"
    assert " ".join(words.split()) in " ".join((ROOT / "README.md").read_text().split())


def test_the_sweep_is_wide() -> None:
    assert len(CASES) >= 150
    assert set(DEVIATIONS) <= set(CASES)
