"""No answer, no permission, and requests that are given up half-way."""

import socket
from collections.abc import Iterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.contract.conftest import BUCKET, Backend, MakeKey
from tests.servers.server import HOST, free_port
from ucfuse.config import Source, StoreOptions
from ucfuse.errors import AccessDenied, ObjectMissing, StoreUnavailable
from ucfuse.metrics import Metrics
from ucfuse.store.api import Fetched, ObjectStore
from ucfuse.store.connect import connect
from ucfuse.volume import Key, MiB


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some credentials, for stores that never get to judge them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "something")
    monkeypatch.setenv("AWS_REGION", "us-east-1")


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port where connections are made but nobody answers."""
    with socket.create_server((HOST, 0)) as listener:
        yield listener.getsockname()[1]


async def connect_to(port: int, nursery: trio.Nursery) -> ObjectStore:
    options = StoreOptions(endpoint_url=f"http://{HOST}:{port}")
    return await connect(Source(BUCKET), options, Metrics(), nursery=nursery)


@pytest.mark.usefixtures("credentials")
async def test_a_refused_connection_is_unavailable_within_the_deadline(
    nursery: trio.Nursery,
) -> None:
    store = await connect_to(free_port(), nursery)
    for request in (
        lambda: store.head(Key("a")),
        lambda: store.get(Key("a"), 0, 10),
        lambda: store.list_page("", delimited=True),
    ):
        with trio.fail_after(3), pytest.raises(StoreUnavailable):
            await request()
    await store.aclose()


@pytest.mark.usefixtures("credentials")
async def test_a_silent_server_is_given_up_at_the_deadline(
    nursery: trio.Nursery, silent_port: int
) -> None:
    store = await connect_to(silent_port, nursery)
    for request in (
        lambda: store.head(Key("a")),
        lambda: store.get(Key("a"), 0, 10),
        lambda: store.put(Key("a"), bytes(MiB)),
    ):
        began = trio.current_time()
        with trio.move_on_after(0.3) as patience:
            await request()
        assert patience.cancelled_caught
        assert trio.current_time() - began < 2
    await store.aclose()


async def test_wrong_credentials_are_denied(
    backend: Backend, key: MakeKey, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    store = await backend.connect(nursery)
    if backend.server is None or not backend.features.verifies_credentials:
        await store.put(key("a"), b"x")
        await store.aclose()
        return
    with pytest.raises(AccessDenied):
        await store.head(key("a"))
    with pytest.raises(AccessDenied):
        await store.get(key("a"), 0, 10)
    with pytest.raises(AccessDenied):
        await store.put(key("a"), b"x")
    with pytest.raises(AccessDenied):
        await store.delete(key("a"))
    with pytest.raises(AccessDenied):
        await store.list_page(key(""), delimited=True)
    with pytest.raises(AccessDenied):
        await store.create_upload(key("a"))
    await store.aclose()


async def test_a_cancelled_get_leaves_the_store_usable(store: ObjectStore, key: MakeKey) -> None:
    body = bytes(range(256)) * (9 * MiB // 256)
    await store.put(key("a"), body)

    for _ in range(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.get, key("a"), 0, 9 * MiB)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    answer = await store.get(key("a"), 0, 9 * MiB)
    assert isinstance(answer, Fetched)
    assert answer.data == body


async def test_a_cancelled_put_has_happened_whole_or_not_at_all(
    store: ObjectStore, key: MakeKey
) -> None:
    body = bytes(9 * MiB)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.put, key("a"), body)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    try:
        size = (await store.head(key("a"))).info.size
    except ObjectMissing:
        size = len(body)
    assert size == len(body)


async def test_a_cancelled_put_does_not_come_back_later(store: ObjectStore, key: MakeKey) -> None:
    for _ in range(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.put, key("a"), bytes(9 * MiB))
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        etag = await store.put(key("a"), b"later")
        for _ in range(10):
            assert (await store.head(key("a"))).info.etag == etag


async def test_many_requests_at_once(store: ObjectStore, key: MakeKey) -> None:
    await store.put(key("a"), b"0123456789")
    read: list[bytes] = []

    async def fetch(start: int) -> None:
        answer = await store.get(key("a"), start, start + 1)
        assert isinstance(answer, Fetched)
        read.append(answer.data)

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(fetch, number % 10)
    assert sorted(read) == sorted([b"%d" % (number % 10) for number in range(100)])
