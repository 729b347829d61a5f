"""A store that is away: lookups that waited behind a failed one fail with it, and no others."""

import pytest
import trio
from trio.testing import MockClock

from tests.fs.kernel import Kernel
from tests.fs.stores import ScriptedStore
from ucfuse.errors import NotFound, StoreUnavailable, Throttled
from ucfuse.fs.failed_lookups import ALL_S, NEXT_S
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.metrics import Metrics
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import Key

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
async def program(fs: VolumeFilesystem, memory: MemoryStore) -> Kernel:
    """A program that knows the directories `d` and `e`, and one name in `d`."""
    for key in ("d/known", "e/other"):
        await memory.put(Key(key), b"data")
    kernel = Kernel(fs)
    for path in ("d/known", "e"):
        await kernel.walk(path)
    return kernel


@pytest.mark.promise("P36")
@pytest.mark.parametrize("cause", [StoreUnavailable("x", "silent"), Throttled("x", "503")])
async def test_what_comes_right_after_a_failure_fails_without_waiting_again(
    program: Kernel, store: ScriptedStore, metrics: Metrics, cause: StoreUnavailable
) -> None:
    store.fail("LIST", cause)
    with pytest.raises(type(cause)):
        await program.walk("d/a")
    asked = metrics.store_requests.total()
    for name in ("b", "c", "a"):
        with pytest.raises(type(cause)):
            await program.walk(f"d/{name}")

    assert metrics.store_requests.total() == asked
    assert (await program.walk("d/known")).size == 4
    with pytest.raises(NotFound):
        await program.walk("e/b")


async def test_a_store_that_came_back_is_asked_at_once(
    program: Kernel, store: ScriptedStore, metrics: Metrics
) -> None:
    metrics.is_away = True
    store.fail("LIST", StoreUnavailable("x", "away"))
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await program.walk("d/a")
    metrics.is_away = False
    with pytest.raises(NotFound):
        await program.walk("d/a")


async def test_the_store_is_asked_again_soon(
    program: Kernel, store: ScriptedStore, clock: MockClock
) -> None:
    store.fail("LIST", StoreUnavailable("x", "silent"))
    with pytest.raises(StoreUnavailable):
        await program.walk("d/a")
    clock.jump(NEXT_S * 1.5)
    with pytest.raises(NotFound):
        await program.walk("d/a")


async def test_lookups_without_end_do_not_keep_the_store_from_being_asked(
    program: Kernel, store: ScriptedStore, clock: MockClock
) -> None:
    store.fail("LIST", StoreUnavailable("x", "silent"))
    with pytest.raises(StoreUnavailable):
        await program.walk("d/a")
    ends_at = trio.current_time() + ALL_S
    while trio.current_time() < ends_at - NEXT_S:
        clock.jump(NEXT_S / 2)
        with pytest.raises(StoreUnavailable):
            await program.walk("d/b")
    clock.jump(NEXT_S)
    with pytest.raises(NotFound):
        await program.walk("d/b")
