"""Puts together what a mount serves: stores, budget, and the file system above them.

`mount` uses it. Every volume gets a store of its own (connections, credentials, counters); one
memory budget is for all. One volume is served as it is, many as a tree.

Each store is asked before anything is mounted: a volume that cannot work ends the start, with its
name in the one line that says why. Of a catalog, only that it answers is asked; its volumes are
opened when they are used.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

import trio

from ucfuse.budget import MemoryBudget, divided
from ucfuse.catalog.interface import Catalog, Place, text_of
from ucfuse.catalog.volumes_file import VolumesFile
from ucfuse.config import MountConfig
from ucfuse.errors import (
    AccessDenied,
    ConfigError,
    NotFound,
    NotInCatalog,
    Unauthenticated,
    UnknownPlace,
    VolumeError,
)
from ucfuse.fs.caller import DescriptorProbe
from ucfuse.fs.catalog_folders import FIRST_VOLUME_INDEX
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.fs.interface import MountedFilesystem
from ucfuse.fs.portability_log import Encounters, Portability
from ucfuse.fs.tree import VolumeTree
from ucfuse.governed_volumes import GovernedVolumes
from ucfuse.mounted_volume import MountedVolume
from ucfuse.reading.pagecache import PageCache
from ucfuse.tasks import deadline

__all__ = ["Assembly", "assembled"]

# Long enough for a catalog that is starting, short enough for someone who waits at a prompt.
CHECK_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Assembly:
    """Everything below the kernel session. With a catalog, volumes come while it is served."""

    fs: MountedFilesystem
    encounters: Encounters
    """What programs did that is not portable, on all volumes."""
    list_volumes: Callable[[], Sequence[MountedVolume]]
    list_budgets: Callable[[], Sequence[MemoryBudget]]

    @property
    def volumes(self) -> Sequence[MountedVolume]:
        """The volumes that are open, or should be."""
        return self.list_volumes()

    @property
    def budgets(self) -> Sequence[MemoryBudget]:
        """One for each volume; together they are one limit."""
        return self.list_budgets()

    @property
    def warnings(self) -> list[str]:
        """What the user should know of the stores."""
        return [
            f"{volume.name}: {warning}" if volume.name else warning
            for volume in self.volumes
            for warning in volume.warnings
        ]


@asynccontextmanager
async def assembled(
    config: MountConfig, probe: DescriptorProbe, page_cache: PageCache, nursery: trio.Nursery
) -> AsyncIterator[Assembly]:
    """Build everything, and take it down in the opposite order. Raises `ConfigError`."""
    below = _Below(Portability(config.emulation, probe), page_cache, nursery)
    async with AsyncExitStack() as stack:
        catalog: Catalog | None = None
        if config.catalog is not None:
            # Imported here: mounts without a catalog need no HTTP client.
            from ucfuse.catalog.unity.catalog import connected

            catalog = await stack.enter_async_context(
                connected(config.catalog, config.store, nursery, ttl_s=config.metadata_ttl_s)
            )
        if catalog is not None and not config.governed:
            building = _on_demand(config, catalog, below)
        elif catalog is not None:
            building = _from_start([await _governed_volume(config, catalog)], config, below)
        else:
            volumes = [
                MountedVolume(entry.name, config.of_volume(entry)) for entry in config.volumes
            ]
            building = _from_start(volumes or [MountedVolume("", config)], config, below)
        yield await stack.enter_async_context(building)


@dataclass(frozen=True, slots=True)
class _Below:
    """What all volumes of a mount are built with."""

    policy: Portability
    page_cache: PageCache
    nursery: trio.Nursery


# --- volumes that are known from the start -------------------------------------------------------


@asynccontextmanager
async def _from_start(
    volumes: Sequence[MountedVolume], config: MountConfig, below: _Below
) -> AsyncIterator[Assembly]:
    budgets = divided(config.memory_limit_bytes, len(volumes))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_close_stores, volumes)
        await _connect_all(volumes, below.nursery)
        served: dict[str, VolumeFilesystem] = {}
        for index, (volume, budget) in enumerate(
            zip(volumes, budgets, strict=True), FIRST_VOLUME_INDEX
        ):
            number = index if volume.name else 0
            fs = volume.file_system(budget, below.policy, below.page_cache, number)
            served[volume.name] = await stack.enter_async_context(fs)
        whole = served[""] if "" in served else _tree(config, served, below)
        yield Assembly(whole, below.policy.encounters, lambda: volumes, lambda: budgets)


def _tree(config: MountConfig, served: dict[str, VolumeFilesystem], below: _Below) -> VolumeTree:
    async def find_open(place: Place, _: int) -> VolumeFilesystem:
        return served[".".join(place)]

    return VolumeTree(
        VolumesFile(config.volumes),
        find_open,
        below.nursery,
        below.policy,
        ttl_s=config.metadata_ttl_s,
        timeout_s=config.metadata_timeout_s,
        served=served,
    )


async def _connect_all(volumes: Sequence[MountedVolume], nursery: trio.Nursery) -> None:
    """Connect side by side; raise what the first in order could not do."""
    failures: dict[str, ConfigError] = {}

    async def connect_one(volume: MountedVolume) -> None:
        try:
            with _saying_why():
                await volume.connect(nursery, is_checked=True)
        except ConfigError as error:
            failures[volume.name] = error

    async with trio.open_nursery() as connecting:
        for volume in volumes:
            connecting.start_soon(connect_one, volume)
    for volume in volumes:
        if error := failures.get(volume.name):
            raise ConfigError(f"volume {volume.name!r}: {error}") if volume.name else error


async def _close_stores(volumes: Sequence[MountedVolume]) -> None:
    with trio.CancelScope(shield=True):
        for volume in volumes:
            await volume.close_store()


# --- volumes of a catalog ------------------------------------------------------------------------


async def _governed_volume(config: MountConfig, catalog: Catalog) -> MountedVolume:
    """Return the only volume of the mount."""
    with _saying_why(), deadline(_patience_s(config), text_of(config.governed)):
        entry = await catalog.volume(config.governed)
    label = text_of(tuple(entry.name.split(".")))
    return MountedVolume("", config.of_volume(entry), entry.vend, label)


@asynccontextmanager
async def _on_demand(
    config: MountConfig, catalog: Catalog, below: _Below
) -> AsyncIterator[Assembly]:
    with _saying_why(), deadline(_patience_s(config), config.label):
        await catalog.names(())
    volumes = GovernedVolumes(config, catalog, below.policy, below.page_cache, below.nursery)
    async with volumes:
        tree = VolumeTree(
            catalog,
            volumes.open,
            below.nursery,
            below.policy,
            ttl_s=config.metadata_ttl_s,
            timeout_s=config.metadata_timeout_s,
            served={},
        )
        yield Assembly(
            tree,
            below.policy.encounters,
            lambda: list(volumes.opened.values()),
            lambda: volumes.budget.members,
        )


def _patience_s(config: MountConfig) -> float:
    return min(CHECK_TIMEOUT_S, config.metadata_timeout_s)


@contextmanager
def _saying_why() -> Iterator[None]:
    """Turn what a catalog says no with, at the start, into the line for the user."""
    try:
        yield
    except VolumeError as cause:
        reason = cause.detail or type(cause).__name__
        raise ConfigError(f"{cause.subject}: {reason}; {_mend_of(cause)}") from cause


def _mend_of(cause: VolumeError) -> str:
    match cause:
        case Unauthenticated():
            return "see --token-file or UC_TOKEN"
        case AccessDenied():
            return "ask the owner for the privilege"
        case NotFound() | NotInCatalog():
            return "see the name and --catalog-url"
        case UnknownPlace():
            return "it cannot be mounted"
        case _:
            return "see the network and --catalog-url"
