"""What writing costs: requests and bytes that leave, for the ways in which programs write."""

import pytest

from tests.fs.kernel import Kernel, bytes_in
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.metrics import Metrics
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import HandleId, Key, MiB

pytestmark = pytest.mark.timeout(60)

SIZE = 64 * MiB
BLOCK = bytes(range(256)) * 4096


async def write_in_order(fs: VolumeFilesystem, handle: HandleId, size: int = SIZE) -> None:
    for start in range(0, size, MiB):
        await fs.write(handle, start, BLOCK)


def assert_sent_once(metrics: Metrics) -> None:
    assert SIZE <= metrics.store_bytes_sent <= 1.05 * SIZE
    assert metrics.store_requests["GET"] == 0


@pytest.mark.promise("P15")
async def test_a_file_written_in_order_is_sent_once(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    handle = await program.open("x", "w")
    await write_in_order(fs, handle)
    await program.close(handle)

    assert_sent_once(metrics)
    assert await bytes_in(memory, "x") == BLOCK * 64


async def test_a_file_extended_first_is_sent_once(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    handle = await program.open("x", "w")
    await fs.set_size((await program.lookup("x")).number, SIZE, handle, program.caller())
    await write_in_order(fs, handle)
    await program.close(handle)

    assert_sent_once(metrics)
    assert metrics.store_requests["PART"] == 8
    assert await bytes_in(memory, "x") == BLOCK * 64


@pytest.mark.parametrize("closed_first", [True, False])
async def test_a_file_written_and_then_renamed_is_sent_once(
    fs: VolumeFilesystem,
    program: Kernel,
    memory: MemoryStore,
    metrics: Metrics,
    closed_first: bool,
) -> None:
    await memory.put(Key("x"), b"old")
    handle = await program.open("x.tmp", "w", exclusive=True)
    await write_in_order(fs, handle)
    if closed_first:
        await program.close(handle)
    await program.rename("x.tmp", "x")
    if not closed_first:
        await program.close(handle)

    assert_sent_once(metrics)
    assert await bytes_in(memory, "x") == BLOCK * 64
    assert await bytes_in(memory, "x.tmp") is None


LONG = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.parametrize("appends", [100, pytest.param(1000, marks=LONG)])
async def test_appends_to_a_log_send_little(
    fs: VolumeFilesystem,
    program: Kernel,
    memory: MemoryStore,
    metrics: Metrics,
    appends: int,
) -> None:
    line = b"l" * 99 + b"\n"
    await program.write_file("log", b"")
    for count in range(appends):
        before = metrics.store_bytes_sent
        handle = await program.open("log", "a")
        await fs.write(handle, count * 100, line)
        await program.close(handle)
        assert metrics.store_bytes_sent - before < 6 * MiB

    assert metrics.store_requests["GET"] == 0
    assert await bytes_in(memory, "log") == line * appends


@pytest.mark.promise("P15")
async def test_appends_to_a_large_object_send_little(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    line, base = b"l" * 99 + b"\n", BLOCK * 128
    await memory.put(Key("log"), base)
    for count in range(5):
        before = metrics.store_bytes_sent
        handle = await program.open("log", "a")
        await fs.write(handle, len(base) + count * 100, line)
        await program.close(handle)
        assert metrics.store_bytes_sent - before < 6 * MiB

    assert metrics.store_requests["GET"] == 0
    assert await bytes_in(memory, "log") == base + line * 5


@pytest.mark.parametrize(("exclusive", "puts"), [(False, 1), (True, 2)])
async def test_a_new_small_file_costs_as_few_requests_as_can_be(
    program: Kernel, fs: VolumeFilesystem, metrics: Metrics, exclusive: bool, puts: int
) -> None:
    handle = await program.open("x", "w", exclusive=exclusive)
    await fs.write(handle, 0, b"small")
    await program.close(handle)
    await program.lookup("x")

    requests = metrics.store_requests
    assert requests["PUT"] == puts
    assert requests["HEAD"] <= 2
    assert requests["LIST"] <= 1
    assert sum(requests.values()) <= puts + 3


@pytest.mark.promise("P15")
async def test_a_change_in_a_large_object_opens_without_a_download(
    program: Kernel, fs: VolumeFilesystem, memory: MemoryStore, metrics: Metrics
) -> None:
    base = BLOCK * 40
    await memory.put(Key("x"), base)
    handle = await program.open("x", "r+")
    await fs.write(handle, 20 * MiB, b"changed")
    assert metrics.store_bytes_received == 0

    await program.close(handle)

    assert metrics.store_bytes_received < 6 * MiB
    assert metrics.store_bytes_sent < 6 * MiB
    assert metrics.store_requests["PARTCOPY"] == 2
    changed = base[: 20 * MiB] + b"changed" + base[20 * MiB + 7 :]
    assert await bytes_in(memory, "x") == changed
    assert await program.read_file("x") == changed
