"""The report of what is not portable: counted, bounded, logged once, refused in strict modes."""

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count

import pytest

from tests.fs.kernel import FakeProbe
from ucfuse.errors import NotPortable
from ucfuse.fs.portability_log import Encounters, Portability
from ucfuse.portability import Emulation, Operation


@pytest.fixture
def encounters() -> Encounters:
    times: Iterator[int] = count(100)
    return Encounters(most=3, wall_s=lambda: next(times))


def test_equal_encounters_are_counted_with_their_first_and_last_time(
    encounters: Encounters,
) -> None:
    for _ in range(3):
        encounters.note("zip", "a.zip", Operation.OVERWRITE)

    (met,) = encounters
    assert (met.program, met.path, met.operation) == ("zip", "a.zip", Operation.OVERWRITE)
    assert (met.count, met.first_at_s, met.last_at_s) == (3, 100, 102)


def test_the_oldest_make_room_and_are_counted(encounters: Encounters) -> None:
    for path in ("a", "b", "c", "a", "d", "e"):
        encounters.note("p", path, Operation.APPEND)

    assert [met.path for met in encounters] == ["a", "d", "e"]
    assert encounters.dropped_count == 2


def test_the_log_tells_of_each_program_and_kind_once(
    encounters: Encounters, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for program, path, operation in (
        ("zip", "a", Operation.OVERWRITE),
        ("zip", "b", Operation.OVERWRITE),
        ("zip", "a", Operation.APPEND),
        ("bash", "a", Operation.APPEND),
    ):
        encounters.note(program, path, operation)

    told = [record.getMessage().split(": Databricks")[0] for record in caplog.records]
    assert told == ["a: overwrite, by zip", "a: append, by zip", "a: append, by bash"]


@pytest.mark.parametrize("mode", Emulation)
def test_every_mode_notes_and_the_strict_ones_refuse(mode: Emulation) -> None:
    policy = Portability(mode, FakeProbe()).below("main/default/images")
    refused = pytest.raises(NotPortable) if mode.is_strict else nullcontext()
    with refused as refusal:
        policy.meet(Operation.LINK, "f", policy.program_of(7))

    if refusal is not None:
        assert (refusal.value.operation, refusal.value.emulation) == (Operation.LINK, mode)
    assert [(met.program, met.path) for met in policy.encounters] == [
        ("program-7", "main/default/images/f")
    ]


def test_a_program_that_cannot_be_told_is_unknown() -> None:
    policy = Portability(Emulation.POSIX, FakeProbe())
    assert policy.program_of(None) == policy.program_of(0) == "unknown"
