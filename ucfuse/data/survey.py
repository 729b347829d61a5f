"""One listing of a source in a thread of its own, so that nobody waits for it.

`fetching` begins one when asking for single files turns out to be slow, and, shortly before a pass
ends, one whose answer nobody reads: file system and kernel then answer from memory when the next
pass asks.

Concurrency: made, asked and left by one thread. Whoever leaves it early lets it end by itself.
"""

import threading
from collections.abc import Callable, Mapping

from ucfuse.data.listing import Version

__all__ = ["Survey"]

Versions = Mapping[str, Version]


class Survey:
    """A listing that has begun."""

    def __init__(self, work: Callable[[], Versions]) -> None:
        self._work = work
        self._versions: Versions = {}
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ucfuse-survey", daemon=True)
        self._thread.start()

    def has_ended(self) -> bool:
        """Return whether `versions` would not wait."""
        return not self._thread.is_alive()

    def versions(self) -> Versions:
        """Return what was listed, once it is. Raises `OSError`."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._versions

    def _run(self) -> None:
        try:
            self._versions = self._work()
        except BaseException as error:  # noqa: BLE001 - raised where the answer is read
            self._error = error
