"""The operations of the model test, and how Hypothesis draws them."""

from dataclasses import dataclass

from hypothesis import strategies as st

__all__ = ["FILES", "FOLDERS", "SHARED", "Op", "operations"]

SHARED = ["a", "b", "d/a", "d/b"]
"""Files that the other client changes too."""
FILES = [*SHARED, "d/s/a", "e/s/a", "e/s/b"]
FOLDERS = ["d/s", "e/s", "e/t"]

PAGE, MIB = 4096, 1 << 20
# Small ones more often: they cost little, and most mistakes need no large file.
SIZES = [0, 1, 2, 100, PAGE - 1, PAGE, PAGE + 1] * 4 + [
    edge * MIB + delta for edge in (1, 5, 8) for delta in (-1, 0, 1)
]


@dataclass(frozen=True)
class Op:
    """One operation; what it does not need has no meaning."""

    kind: str
    path: str = ""
    other: str = ""
    size: int = 0
    offset: int = 0


def _op(kind: str, **parts: st.SearchStrategy[object]) -> st.SearchStrategy[Op]:
    return st.builds(Op, st.just(kind), **parts)


_files, _folders = st.sampled_from(FILES), st.sampled_from(FOLDERS)
_sizes, _shared = st.sampled_from(SIZES), st.sampled_from(SHARED)
_modes = st.sampled_from(["w", "r+", "a"])

operations: st.SearchStrategy[Op] = st.one_of(
    _op("write", path=_files, size=_sizes),
    _op("append", path=_files, size=_sizes),
    _op("patch", path=_files, size=_sizes, offset=_sizes),
    _op("truncate", path=_files, size=_sizes),
    _op("read", path=_files),
    _op("read around a put", path=_shared, size=_sizes),
    _op("remove", path=_files),
    _op("rename", path=_files, other=_files),
    _op("mkdir", path=_folders),
    _op("rmdir", path=_folders),
    _op("rename folder", path=_folders, other=_folders),
    _op("list", path=st.sampled_from(["", "d", "e", *FOLDERS])),
    _op("put elsewhere", path=_shared, size=_sizes),
    _op("delete elsewhere", path=_shared),
    _op("hold reader", path=_files),
    _op("read held"),
    _op("hold writer", path=_files, other=_modes),
    _op("write held", size=_sizes, offset=_sizes),
    _op("close writer"),
    _op("remount"),
)
