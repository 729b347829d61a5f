"""Which writes of a handle go on in order, and what the others are."""

import pytest

from ucfuse.fs.write_order import Sequence
from ucfuse.portability import Operation

Write = tuple[int, int]


def judged(starts_at: int | None, size: int, writes: list[Write]) -> list[Operation | None]:
    """Make the writes (offset, length) one after another on a file of `size`."""
    sequence, answers = Sequence(starts_at), []
    for offset, length in writes:
        answers.append(sequence.judge(offset, size))
        sequence.wrote(offset + length)
        size = max(size, offset + length)
    return answers


@pytest.mark.parametrize(
    ("starts_at", "size", "writes", "answers"),
    [
        pytest.param(0, 0, [(0, 5), (5, 5), (10, 1)], [None] * 3, id="a new file in order"),
        pytest.param(0, 0, [(1, 5)], [Operation.SPARSE], id="a hole at the beginning"),
        pytest.param(0, 0, [(0, 5), (9, 1)], [None, Operation.SPARSE], id="a hole"),
        pytest.param(
            0,
            0,
            [(0, 9), (2, 3), (5, 1), (9, 4)],
            [None, Operation.OVERWRITE, None, None],
            id="back to the header, and to the end again, as zip does",
        ),
        pytest.param(None, 9, [(0, 3), (3, 3)], [Operation.OVERWRITE, None], id="in place"),
        pytest.param(None, 9, [(9, 3), (12, 3)], [Operation.APPEND, None], id="behind the end"),
        pytest.param(None, 9, [(10, 1)], [Operation.SPARSE], id="far behind the end"),
        pytest.param(9, 9, [(9, 3), (12, 3)], [None] * 2, id="opened to append: told of already"),
        pytest.param(None, 0, [(0, 3), (3, 3)], [None] * 2, id="emptied since it was opened"),
    ],
)
def test_writes_are_judged_by_where_the_handle_has_come_to(
    starts_at: int | None, size: int, writes: list[Write], answers: list[Operation | None]
) -> None:
    assert judged(starts_at, size, writes) == answers


def test_a_write_that_failed_may_be_made_again() -> None:
    sequence = Sequence(0)
    sequence.wrote(5)

    assert sequence.judge(5, 5) is None
    assert sequence.judge(5, 5) is None


def test_a_handle_that_goes_on_where_another_has_written_appends() -> None:
    sequence = Sequence(0)
    sequence.wrote(5)

    assert sequence.judge(9, 9) is Operation.APPEND
