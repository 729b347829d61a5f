"""Who may change which keys now: all changes of one key run one after another.

`fs` holds a claim around every commit, rename, unlink, mkdir and rmdir. A key that ends in `/`
claims everything below it. All keys of one operation are claimed in one step, in the order of
arrival, and nobody claims while holding: so no deadlock.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from ucfuse.volume import DIRECTORY_SUFFIX

__all__ = ["Claims"]


@dataclass(slots=True, eq=False)
class _Claim:
    keys: tuple[str, ...]
    turn: int
    released: trio.Event = field(default_factory=trio.Event)

    @property
    def is_tree(self) -> bool:
        return any(key.endswith(DIRECTORY_SUFFIX) for key in self.keys)


class Claims:
    """Claims held and waited for, of one volume."""

    def __init__(self) -> None:
        self._last_turn = 0
        self._by_key: dict[str, list[_Claim]] = {}
        self._trees: list[_Claim] = []

    @asynccontextmanager
    async def hold(self, *keys: str) -> AsyncIterator[None]:
        """Wait until no earlier claim overlaps, then hold `keys` for the block."""
        self._last_turn += 1
        claim = _Claim(tuple(dict.fromkeys(keys)), self._last_turn)
        self._register(claim)
        try:
            while (blocker := self._blocker(claim)) is not None:
                await blocker.released.wait()
            yield
        finally:
            self._unregister(claim)
            claim.released.set()

    @asynccontextmanager
    async def hold_current(
        self, keys_now: Callable[[], tuple[str, ...]]
    ) -> AsyncIterator[tuple[str, ...]]:
        """Hold the keys that `keys_now` tells of once they are granted; yields them.

        A directory above may be renamed while the claim waits: then it claims anew.
        """
        while True:
            keys = keys_now()
            async with self.hold(*keys):
                if keys_now() == keys:
                    yield keys
                    return

    def _register(self, claim: _Claim) -> None:
        for key in claim.keys:
            self._by_key.setdefault(key, []).append(claim)
        if claim.is_tree:
            self._trees.append(claim)

    def _unregister(self, claim: _Claim) -> None:
        for key in claim.keys:
            holders = self._by_key[key]
            holders.remove(claim)
            if not holders:
                del self._by_key[key]
        if claim.is_tree:
            self._trees.remove(claim)

    def _blocker(self, claim: _Claim) -> _Claim | None:
        for other in self._candidates(claim):
            if other.turn < claim.turn and _overlap(other, claim):
                return other
        return None

    def _candidates(self, claim: _Claim) -> Iterator[_Claim]:
        if claim.is_tree:
            for holders in self._by_key.values():
                yield from holders
            return
        for key in claim.keys:
            yield from self._by_key[key]
        yield from self._trees


def _overlap(one: _Claim, other: _Claim) -> bool:
    return any(_covers(a, b) or _covers(b, a) for a in one.keys for b in other.keys)


def _covers(a: str, b: str) -> bool:
    return a == b or (a.endswith(DIRECTORY_SUFFIX) and b.startswith(a))
