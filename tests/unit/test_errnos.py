"""The table from causes to errnos: complete, and never EAGAIN where it would truncate."""

import errno
from collections.abc import Iterator

import pytest

from ucfuse.errors import (
    AccessDenied,
    NotFound,
    NotPortable,
    ObjectChanged,
    OutcomeUnclear,
    StoreUnavailable,
    Throttled,
    VolumeError,
)
from ucfuse.kernel.errnos import EMULATED_ERRNOS, ERRNOS, errno_for
from ucfuse.portability import Emulation, Operation


def leaves(cause: type[VolumeError]) -> Iterator[type[VolumeError]]:
    """Yield the causes that have no more special ones below them."""
    below = [kind for kind in cause.__subclasses__() if kind.__module__ == "ucfuse.errors"]
    if not below:
        yield cause
    for kind in below:
        yield from leaves(kind)


def test_every_cause_has_exactly_one_errno() -> None:
    """A new cause without a row would reach programs as EIO."""
    assert set(leaves(VolumeError)) - {NotPortable} == set(ERRNOS)


def test_every_operation_that_is_not_portable_has_an_errno_in_every_strict_mode() -> None:
    strict = {mode for mode in Emulation if mode.is_strict}
    assert set(EMULATED_ERRNOS) == set(Operation)
    assert all(set(errnos) == strict for errnos in EMULATED_ERRNOS.values())


@pytest.mark.parametrize("moves_data", [True, False])
def test_what_a_strict_mode_refuses_has_the_errno_of_that_mode(moves_data: bool) -> None:
    for operation, errnos in EMULATED_ERRNOS.items():
        for mode, code in errnos.items():
            cause = NotPortable("path", operation, mode)
            assert errno_for(cause, moves_data=moves_data) == code
            assert errno_for(cause.again(), moves_data=moves_data) == code


@pytest.mark.parametrize("cause", list(ERRNOS))
def test_requests_that_move_data_never_answer_eagain(cause: type[VolumeError]) -> None:
    """EAGAIN on read or write ends Python's loops early and without an error."""
    assert errno_for(cause("key"), moves_data=True) != errno.EAGAIN


@pytest.mark.parametrize("cause", [Throttled, StoreUnavailable, OutcomeUnclear])
def test_store_away_is_eio_for_data_and_eagain_for_names(cause: type[VolumeError]) -> None:
    """Programs may try an open again; of a read they must learn that it failed."""
    assert errno_for(cause("key"), moves_data=True) == errno.EIO
    assert errno_for(cause("key"), moves_data=False) == errno.EAGAIN


@pytest.mark.parametrize("moves_data", [True, False])
def test_other_causes_have_one_errno_for_all_requests(moves_data: bool) -> None:
    """Spot checks of the documented errnos."""
    assert errno_for(NotFound("key"), moves_data=moves_data) == errno.ENOENT
    assert errno_for(AccessDenied("key"), moves_data=moves_data) == errno.EACCES
    assert errno_for(ObjectChanged("key"), moves_data=moves_data) == errno.ESTALE
