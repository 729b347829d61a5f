"""How later passes learn what has changed: by asking for each file, or by a listing meanwhile."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from ucfuse.data.cache import Found
from ucfuse.data.counters import Counters
from ucfuse.data.fetching import Fetching
from ucfuse.data.listing import Listing, Version
from ucfuse.data.planning import Plan
from ucfuse.data.schedule import Schedule
from ucfuse.data.survey import Survey

from .files import Files

Clock = Callable[[], float]


def ticking(step_s: float) -> Clock:
    """Return a clock on which so many seconds pass from one look to the next."""
    ticks = count()
    return lambda: next(ticks) * step_s


class Volume:
    """A directory, with a count of how often it was listed."""

    def __init__(self, path: Path, names: list[str]) -> None:
        self.path = path
        self.names = names
        self.listings = 0

    def versions(self) -> Mapping[str, Version]:
        self.listings += 1
        return Listing(str(self.path), False, None).versions()

    def plan(self) -> Plan:
        uses = range(len(self.names))
        schedule = Schedule({}, {})
        return Plan(self.names, uses, [], [], self.versions, schedule, processes=1, hold=0)


@pytest.fixture
def volume(volume_dir: Path, files: Files) -> Volume:
    return Volume(volume_dir, sorted(files))


@pytest.fixture
def open_fetching(volume: Volume, cache_dir: Path) -> Iterator[Callable[[Clock], Fetching]]:
    """Make what fetches, on a clock; its first pass is over."""
    opened: list[Fetching] = []

    def make(clock: Clock) -> Fetching:
        counters = Counters()
        fetching = Fetching(str(volume.path), str(cache_dir), None, 4, counters.count_retry, clock)
        opened.append(fetching)
        read_pass(fetching, volume)
        volume.listings = 0
        return fetching

    yield make
    for fetching in opened:
        fetching.close()


def read_pass(fetching: Fetching, volume: Volume) -> dict[str, bytes]:
    with closing(fetching.hand_out(volume.plan())) as handed_out:
        found = [each for each in handed_out if isinstance(each, Found)]
    return {each.name: Path(each.path).read_bytes() for each in found}


def test_a_pass_of_known_files_asks_for_each_and_lists_nothing(
    volume: Volume, files: Files, open_fetching: Callable[[Clock], Fetching]
) -> None:
    fetching = open_fetching(ticking(0))
    changed = volume.names[50]
    (volume.path / volume.names[-1]).touch()  # the copy is made again, from a listing
    assert read_pass(fetching, volume) == files
    assert volume.listings == 1
    assert read_pass(fetching, volume) == files
    assert volume.listings == 1
    (volume.path / changed).write_bytes(b"changed")
    files[changed] = b"changed"
    assert read_pass(fetching, volume) == files


def test_where_asking_is_slow_the_directory_is_listed_meanwhile(
    volume: Volume, files: Files, open_fetching: Callable[[Clock], Fetching]
) -> None:
    fetching = open_fetching(ticking(0.001))
    for _ in range(2):
        assert read_pass(fetching, volume) == files
    assert volume.listings >= 2


def test_before_a_long_pass_ends_the_directory_is_looked_at_for_the_next(
    volume: Volume, files: Files, open_fetching: Callable[[Clock], Fetching]
) -> None:
    """What kernel and file system know by then need not be asked of the store in the next pass."""
    now = [0.0]
    fetching = open_fetching(lambda: now[0])
    with closing(fetching.hand_out(volume.plan())) as handed_out:
        for number, _ in enumerate(handed_out):
            if number < len(volume.names) // 2:
                assert volume.listings == 0
            now[0] += 0.05
    assert fetching._renewal is not None
    assert set(fetching._renewal.versions()) == set(files)
    assert volume.listings == 1
    assert read_pass(fetching, volume) == files
    assert volume.listings == 1


def test_a_survey_tells_its_error_where_it_is_asked() -> None:
    def fail() -> Mapping[str, Version]:
        raise PermissionError("no")

    survey = Survey(fail)
    with pytest.raises(PermissionError):
        survey.versions()
    assert survey.has_ended()
