"""The stores that the ends of a copy are in: found, connected and examined, each of them once.

`copy_trees` uses it. Credentials may reach no more than the directory that an end names.
"""

from dataclasses import replace

import trio

from ucfuse.cli.copy_ends import End, is_embedded
from ucfuse.cli.mounting import reach_embedded
from ucfuse.config import Source
from ucfuse.errors import ConfigError
from ucfuse.metrics import Metrics
from ucfuse.store.address import locate
from ucfuse.store.api import ObjectStore
from ucfuse.store.conditions import fit
from ucfuse.store.connect import check, connect

__all__ = ["Connections"]

# Beside data, questions about names; see `transport`.
CONNECTIONS_BESIDE = 16


class Connections:
    """The stores of both ends. Their owner: `aclose` ends them."""

    def __init__(self, most_requests: int, nursery: trio.Nursery) -> None:
        self._most_requests = most_requests
        self._nursery = nursery
        self._stores: dict[tuple[object, ...], ObjectStore] = {}

    async def connected(self, end: End) -> End:
        """Return the end as its store is reached, once that is connected. Raises `ConfigError`."""
        if end.source is None:
            return end
        end = await _reach(end)
        identity, place = _identity(end), _place_of(end)
        if identity not in self._stores:
            self._stores[identity] = await connect(
                Source(place.bucket),
                end.store,
                Metrics(),
                nursery=self._nursery,
                most_connections=self._most_requests + CONNECTIONS_BESIDE,
            )
        await check(self._stores[identity], place)
        return end

    async def fit(self, end: End) -> None:
        """Before anything is written there: make up for conditions that its store ignores."""
        if end.source is not None:
            identity = _identity(end)
            self._stores[identity], _ = await fit(self._stores[identity], _place_of(end).prefix)

    def of(self, end: End) -> ObjectStore | None:
        """Return the store of a connected end; None: it is on the local disk."""
        return self._stores.get(_identity(end))

    async def aclose(self) -> None:
        """End all connections."""
        for store in self._stores.values():
            await store.aclose()


def _identity(end: End) -> tuple[object, ...]:
    """Return what is equal of ends that one connection serves."""
    return (end.source and end.source.bucket, end.store)


async def _reach(end: End) -> End:
    """Return the end with the options that reach its store for certain. Raises `ConfigError`."""
    assert end.source is not None
    told = end.store.address
    if is_embedded(end):
        return replace(end, store=reach_embedded(str(end.store.endpoint_url), told))
    found = await locate(end.source, replace(end.store, address=""))
    if told and found.address != told:
        raise ConfigError(
            f"{end.text}: its mount uses {told}, but this would reach {found.address};"
            " see AWS_ENDPOINT_URL, AWS_REGION and AWS_PROFILE"
        )
    return replace(end, store=found)


def _place_of(end: End) -> Source:
    """Return the directory that an end is in: credentials may reach no other one."""
    assert end.source is not None
    directory, slash, _ = end.name.rpartition("/")
    return Source(end.source.bucket, end.source.prefix + directory + slash)
