"""The README's table of modes says what the code's table of errnos says."""

from tests.modes_table import errno_in, rows
from ucfuse.kernel.errnos import EMULATED_ERRNOS
from ucfuse.portability import Emulation, Operation


def test_the_table_has_every_operation_and_every_mode() -> None:
    table = rows()
    assert list(table) == [operation.value for operation in Operation]
    for row in table.values():
        assert set(row) == {"operation", "that is", *(mode.value for mode in Emulation)}


def test_the_errnos_of_the_strict_modes_are_those_of_the_code() -> None:
    table = rows()
    for operation, errnos in EMULATED_ERRNOS.items():
        told = {mode: errno_in(table[operation.value][mode.value]) for mode in errnos}
        assert told == dict(errnos), operation
