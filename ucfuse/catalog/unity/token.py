"""The token that says who we are at the catalog: in memory only, and as new as its file.

The client asks before every request; the file is read again when it has changed. The token is
never logged, never part of an error, and never written anywhere.

Concurrency: files are read in a worker thread, which touches nothing of ours.
"""

import os
import re
from pathlib import Path

import trio

from ucfuse.errors import Unauthenticated

__all__ = ["Token"]

# What can be a header's value, and what every kind of token is made of.
_USABLE = re.compile(r"[\x21-\x7e]+")

_Stamp = tuple[int, int, int]


class Token:
    """A fixed token, or that of a file; neither: we are nobody in particular."""

    def __init__(self, fixed: str | None, path: Path | None) -> None:
        self._path = path
        self._current = fixed or None
        self._stamp: _Stamp | None = None

    async def current(self, *, anew: bool = False) -> str | None:
        """Return the token; `anew` reads its file also if that seems to be unchanged.

        Raises `Unauthenticated`: there is no usable token in the file.
        """
        if self._path is None:
            return self._checked(self._current, "the token")
        stamp = None if anew else self._stamp
        read = await trio.to_thread.run_sync(_read, self._path, stamp, abandon_on_cancel=True)
        if read is not None:
            self._stamp, text = read
            # A file that is just being written anew is empty: until then the last one holds.
            self._current = text or self._current
        if self._current is None:
            raise Unauthenticated(str(self._path), "there is no token in it")
        return self._checked(self._current, str(self._path))

    def _checked(self, token: str | None, subject: str) -> str | None:
        if token is not None and not _USABLE.fullmatch(token):
            raise Unauthenticated(subject, "such characters cannot be in a token")
        return token


def _read(path: Path, known: _Stamp | None) -> tuple[_Stamp, str] | None:
    """Return the file's stamp and content; None: it is unchanged."""
    try:
        found = os.stat(path)
        stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        return None if stamp == known else (stamp, path.read_text(errors="replace").strip())
    except OSError as error:
        raise Unauthenticated(str(path), f"cannot be read: {error.strerror}") from error
