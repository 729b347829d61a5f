"""A bucket in memory, and the same bucket as the tests of names see it."""

import pytest
from trio.testing import MockClock

from tests.fs.stores import ScriptedStore
from ucfuse.metrics import Metrics
from ucfuse.store.memory import MemoryStore


@pytest.fixture
def clock() -> MockClock:
    """A clock that runs and can be put forward. A test has it by asking for it itself."""
    return MockClock(rate=1.0)


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def store(memory: MemoryStore) -> ScriptedStore:
    """The bucket with requests that can be held up or made to fail."""
    return ScriptedStore(memory)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()
