"""`UCVolumeDataset`: the files of a directory as local paths, shared out over ranks and workers.

It may be iterated directly, through torch's `DataLoader`, or through ours, which also knows how far
the training is. The object holds paths and numbers only, so it can be pickled and forked; what
needs descriptors or threads is made in the process that iterates, at its first iteration.

It never writes to the volume.

Concurrency: one iteration at a time per process.
"""

import contextlib
import logging
import operator
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from torch.utils.data import IterableDataset, get_worker_info

from ucfuse.data.cache import Cache, Found
from ucfuse.data.epoch_order import Course, Position, Uneven
from ucfuse.data.listing import Listing, Version, digest_of
from ucfuse.data.passes import Board, Brief, Mark, Pass, Walk
from ucfuse.data.planning import Plan, plan_walk
from ucfuse.data.private_cache import own_cache
from ucfuse.data.process_state import Here
from ucfuse.data.ranks import Placement, find_placement
from ucfuse.data.retries import patiently
from ucfuse.data.states import Identity, RankState, read_states, resolve

__all__ = ["State", "UCVolumeDataset"]

log = logging.getLogger(__name__)

State = dict[str, Any]


class UCVolumeDataset(IterableDataset[str]):
    """The files of a directory, as paths of local copies, in a stable order.

    Each file is copied into the cache on first access; later passes read nothing of the volume, but
    ask for size and time of each file, or list the directory where that is faster, to see what has
    changed. The files themselves are those that were there when the dataset was made.

    Ranks (`torch.distributed`, else RANK and WORLD_SIZE) and then DataLoader workers share the
    files. Where the files do not divide by the number of ranks, `uneven` decides: "pad": all ranks
    get equally many, so up to one file per rank comes twice; "drop": all ranks get equally many,
    and the last files, fewer than there are ranks, are left out; "strict": each file exactly once,
    so that some ranks get one file more, which hangs training that synchronises every step.

    The order of a pass is a function of `seed`, epoch and listing. The epoch goes up by one after
    each complete pass, or is what `set_epoch` says. Torch's own DataLoader does not tell when a
    pass of its workers is complete: there call `set_epoch`, or every epoch has the same order.

    `recursive`: also the files below sub-directories, which the copies mirror.
    `pattern`: only files whose name (with a `/` in it: whose path) matches, as in a shell.
    `cache_dir`: kept, and may be shared by jobs; without it the cache is private to the job and
    removed when the job ends. `cache_bytes`: limit of that directory; what is needed last goes
    first. Processes that share a directory must agree on its limit. `fetchers`: files that each
    iterating process copies at the same time, while it opens as many others. `on_error`: "skip"
    leaves files out that cannot be read, warns, and counts them in `stats()`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        recursive: bool = False,
        pattern: str | None = None,
        shuffle: bool = False,
        seed: int = 0,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        fetchers: int = 16,
        uneven: Literal["pad", "drop", "strict"] = "pad",
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        """List the directory. Raises `OSError`: it cannot be; `ValueError`: an option."""
        _check_options(fetchers, cache_bytes, on_error)
        self.path = os.path.abspath(os.fspath(path))
        self.cache_bytes = cache_bytes
        self.fetchers = fetchers
        self.on_error = on_error
        self._listing = Listing(self.path, recursive, pattern)
        self._names = patiently(self._listing.names, threading.Event(), lambda error: None)
        self._course = Course(len(self._names), shuffle, operator.index(seed), Uneven(uneven))
        self._identity = Identity(
            len(self._names), digest_of(self._names), shuffle, self._course.seed, str(uneven)
        )
        self._private = cache_dir is None
        self.cache_dir = (
            own_cache(self.path, cache_bytes) if cache_dir is None else os.path.abspath(cache_dir)
        )
        if not self._names:
            log.warning("%s: no file%s", self.path, f" matches {pattern!r}" if pattern else "")
        self._board = Board()
        self._epoch = 0
        self._loaded: list[RankState] = []
        self._loads = 0
        self._pass: Pass | None = None
        self._passes = 0
        self._told: Placement | None = None
        self._told_in = 0
        self._here = Here()

    # What may be called in the process that trains.

    def __len__(self) -> int:
        """Return how many files this rank gets per pass."""
        placement = find_placement()
        return len(self._course.share(Position(0, placement.world), placement.rank))

    def set_epoch(self, epoch: int) -> None:
        """Begin the next pass at the top of `epoch`, or where the loaded state is in that epoch."""
        self._board.own()
        if self._loaded and self._position(find_placement()).epoch != epoch:
            self._loaded = []
        if self._pass is not None and self._pass.position.epoch != epoch:
            self._pass = None
        self._epoch = epoch
        self._board.epoch = epoch

    def state_dict(self) -> State:
        """Return how much of the epoch this rank's training loop has received.

        Raises `RuntimeError`: workers of a loader that does not tell have read the dataset.
        """
        placement = find_placement()
        if self._board.foreign:
            raise RuntimeError(
                "workers of torch's own DataLoader read this dataset, and do not tell how far the"
                " training is: use ucfuse.data.DataLoader"
            )
        now = self._pass
        if now is None or now.complete:
            return RankState(placement.rank, self._position(placement)).as_dict(self._identity)
        if now.began_again:
            raise RuntimeError(
                "a wrapper began the dataset again within one pass of the loader: end the wrapper's"
                " iteration with the dataset's, and loop over the loader instead"
            )
        rank = now.placement.rank
        position = self._course.advance(now.position, rank, now.counts)
        return RankState(rank, position).as_dict(self._identity)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Let the next pass go on where `state` was; give one state, or the list of all ranks'.

        Of a single state it is assumed that the other ranks were at the same step. On as many ranks
        as before, each rank may give its own. Raises `ValueError`: it is of other files or options.
        """
        self._board.own()
        self._loaded = read_states(state, self._identity)
        self._pass = None
        self._loads += 1
        self._board.count_load()

    def stats(self) -> dict[str, int]:
        """Return what this process counted; a loader's `stats` has the sums of its workers."""
        return self._here.counters.as_dict()

    # For the loader.

    def begin_pass(self, workers: int, hold: int) -> tuple[Pass, Brief]:
        """Begin a pass of a loader with so many workers, 0 for none."""
        begun = self._begin(max(1, workers))
        self._board.begin(begun.number, begun.position.epoch)
        brief = Brief(begun.number, begun.position, begun.placement, max(1, workers), hold)
        return begun, brief

    def end_pass(self, ended: Pass) -> None:
        """Say that the training loop has received all of a pass."""
        ended.complete = True
        if self._pass is ended:
            self._epoch = ended.position.epoch + 1
            self._board.epoch = self._epoch

    def brief(self, brief: Brief | None) -> None:
        """Tell this process's copy which pass it is iterated for; None: for nobody's."""
        self._adopt_process()
        self._here.brief = brief

    def mark(self) -> Mark:
        """Return how far this process's copy is in the pass that it was briefed for."""
        assert self._here.brief is not None
        number, epoch = self._current(self._here.brief)
        walk = self._here.walk
        if walk is None or walk.number != number:
            return Mark(number, epoch, 0, self._here.counters)
        return Mark(number, walk.position.epoch, walk.handed, self._here.counters)

    # Iterating.

    def __iter__(self) -> Iterator[str]:
        self._adopt_process()
        info = get_worker_info()
        if self._here.brief is not None:
            walk = self._briefed_walk(self._here.brief, 0 if info is None else info.id)
        elif info is not None:
            walk = self._foreign_walk(info.id, info.num_workers)
        else:
            direct = self._begin(1)
            walk = Walk(direct.number, direct.position, direct.placement, direct=direct)
        self._here.walk = walk
        return self._paths(walk)

    def _begin(self, workers: int) -> Pass:
        self._board.own()
        self._board.foreign = False
        placement = find_placement()
        position = self._position(placement)
        self._loaded = []
        self._passes += 1
        self._epoch = self._board.epoch = position.epoch
        self._pass = Pass(self._passes, position, placement, [0] * workers)
        return self._pass

    def _position(self, placement: Placement) -> Position:
        if self._loaded:
            return resolve(self._loaded, self._course, placement.rank, placement.world)
        return Position(self._epoch, placement.world)

    def _current(self, brief: Brief) -> tuple[int, int]:
        """Return number and epoch of the pass that this process works for now."""
        if get_worker_info() is None:
            return brief.number, brief.position.epoch
        return self._board.current()

    def _briefed_walk(self, brief: Brief, worker: int) -> Walk:
        number, epoch = self._current(brief)
        position = brief.position
        if number != brief.number:  # a later pass of a persistent worker
            position = Position(epoch, brief.placement.world)
        begun_before = self._here.walk is not None and self._here.walk.number == number
        self._here.repeats = self._here.repeats + 1 if begun_before else 0
        if self._here.repeats:
            position = Position(epoch + self._here.repeats, brief.placement.world)
        return Walk(number, position, brief.placement, worker, brief.workers, brief.hold)

    def _foreign_walk(self, worker: int, workers: int) -> Walk:
        """Begin an iteration in a worker of torch's own DataLoader."""
        self._board.foreign = True
        if self._loaded or self._board.loads != self._loads:
            raise RuntimeError(
                "a state was loaded, and workers of torch's own DataLoader cannot resume from it:"
                " use ucfuse.data.DataLoader"
            )
        # A spawned worker knows of no process group; what it inherited of the environment may lie.
        told = self._told if self._told_in == os.getpid() else None
        placement = told or find_placement()
        position = Position(self._board.epoch, placement.world)
        return Walk(0, position, placement, worker, workers)

    def _paths(self, walk: Walk) -> Iterator[str]:
        fetching = self._here.open_fetching(
            self,
            self.path,
            self.cache_dir,
            self.cache_bytes,
            self.fetchers,
            private=self._private,
        )
        plan = self._plan(walk, fetching.cache)
        direct, count = walk.direct, self._here.counters.count
        with contextlib.closing(fetching.hand_out(plan)) as handed_out:
            for found in handed_out:
                if isinstance(found, OSError):
                    self._skip_or_raise(found)
                walk.handed += 1
                if direct is not None:
                    direct.counts[0] = walk.handed
                if isinstance(found, Found):
                    count(found)
                    yield found.path
        if walk.direct is not None:
            self.end_pass(walk.direct)

    def _skip_or_raise(self, error: OSError) -> None:
        if self.on_error == "raise":
            raise error
        self._here.counters.skipped += 1
        log.warning("left out: %s", error)

    def _plan(self, walk: Walk, cache: Cache) -> Plan:
        on_retry = self._here.counters.count_retry

        def list_versions() -> Mapping[str, Version]:
            return patiently(self._listing.versions, threading.Event(), on_retry)

        label = None if self.cache_bytes is None else cache.layout.label
        return plan_walk(walk, self._course, self._names, list_versions, label)

    # Being passed on to other processes.

    def _adopt_process(self) -> None:
        """In a forked child: leave alone what is the parent's."""
        if self._here.process != os.getpid():
            self._here.leave_to_parent()
            self._here = Here()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_here"]
        if get_worker_info() is None:
            state["_told"] = find_placement()
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._told_in = os.getpid()
        self._pass = None
        self._here = Here()


def _check_options(fetchers: int, cache_bytes: int | None, on_error: str) -> None:
    """Raise `ValueError` where an option makes no sense; `Uneven` checks its own."""
    if fetchers < 1:
        raise ValueError(f"fetchers is {fetchers}: at least one is needed")
    if cache_bytes is not None and cache_bytes < 0:
        raise ValueError(f"cache_bytes is {cache_bytes}: a size cannot be negative")
    if on_error not in ("raise", "skip"):
        raise ValueError(f'on_error is {on_error!r}: "raise" or "skip"')
