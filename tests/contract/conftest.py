"""A store of each kind, and a prefix of the test's own in it."""

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass

import pytest
import trio

from tests.contract.features import FEATURES, Features
from tests.servers.server import Server, make_bucket
from ucfuse.config import Source, StoreOptions
from ucfuse.metrics import Metrics
from ucfuse.store.api import ObjectStore
from ucfuse.store.connect import connect
from ucfuse.volume import Key

BUCKET = "contract"

MakeKey = Callable[[str], Key]


@dataclass(frozen=True, slots=True)
class Backend:
    """One kind of store. `server` is None for the store in memory."""

    name: str
    features: Features
    server: Server | None

    async def connect(self, nursery: trio.Nursery) -> ObjectStore:
        """Connect as a mount does; credentials come from the environment."""
        options = StoreOptions(endpoint_url=self.server.endpoint_url if self.server else None)
        source = Source(BUCKET if self.server else None)
        return await connect(source, options, Metrics(), nursery=nursery)


@pytest.fixture(scope="session")
def contract_servers() -> set[str]:
    """Names of the servers that have the bucket already."""
    return set()


@pytest.fixture(params=FEATURES)
def backend(
    request: pytest.FixtureRequest,
    contract_servers: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Backend:
    """Each kind of store in turn, with its credentials in the environment."""
    name: str = request.param
    fixture = "server" if name == "given" else name
    server: Server | None = None if name == "memory" else request.getfixturevalue(fixture)
    if server is not None:
        for variable, value in server.environment().items():
            monkeypatch.setenv(variable, value)
        if name not in contract_servers:
            with closing(server.client()) as client:
                make_bucket(client, BUCKET)
            contract_servers.add(name)
    return Backend(name, FEATURES[name], server)


@pytest.fixture
def features(backend: Backend) -> Features:
    return backend.features


@pytest.fixture
async def store(backend: Backend, nursery: trio.Nursery) -> AsyncIterator[ObjectStore]:
    connected = await backend.connect(nursery)
    yield connected
    await connected.aclose()


@pytest.fixture
def prefix() -> str:
    """A prefix that no other test uses; a server serves all tests of a session."""
    return f"{uuid.uuid4().hex[:8]}/"


@pytest.fixture
def key(prefix: str) -> MakeKey:
    """Make keys below the test's prefix."""
    return lambda name: Key(prefix + name)
