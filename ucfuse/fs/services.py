"""What the parts of the file system share: built once by `VolumeFilesystem`, passed down."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import trio

from ucfuse.budget import MemoryBudget
from ucfuse.config import MountConfig
from ucfuse.fs.caller import DescriptorProbe
from ucfuse.fs.contents import Contents
from ucfuse.fs.handles import Handles
from ucfuse.metrics import Metrics
from ucfuse.names.claims import Claims
from ucfuse.names.inodes import Directory, Node
from ucfuse.names.lookups import Lookups
from ucfuse.names.superblock import Superblock
from ucfuse.names.tickets import Tickets
from ucfuse.reading.cache_directory import CacheFiles
from ucfuse.reading.diskcache import DiskCache
from ucfuse.reading.pagecache import PageCache
from ucfuse.reading.pool import PartPool
from ucfuse.store.api import ObjectStore
from ucfuse.tasks import deadline
from ucfuse.volume import DIRECTORY_SUFFIX, Key
from ucfuse.writing.area import StagingArea
from ucfuse.writing.upload import Uploader

__all__ = ["Services", "build_services", "cache_files_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The organs of one mounted volume. Nothing here is owned by those who use it."""

    config: MountConfig
    store: ObjectStore
    budget: MemoryBudget
    nursery: trio.Nursery
    """For work that outlives a request: fetches, validations, late commits."""
    probe: DescriptorProbe
    page_cache: PageCache | None
    """Where the bytes of small files are pushed; None: nowhere."""
    superblock: Superblock
    lookups: Lookups
    contents: Contents
    handles: Handles
    claims: Claims
    tickets: Tickets
    pool: PartPool
    uploader: Uploader
    cache: DiskCache | None

    def claim_of(self, node: Node) -> AbstractAsyncContextManager[tuple[str, ...]]:
        """Hold the claim on the key (of a directory: and all below) that `node` has then."""
        return self.claims.hold_current(lambda: _claimed(self.superblock.key(node)))

    def claim_on(self, parent: Directory, name: str) -> AbstractAsyncContextManager[object]:
        """Hold the claim on a name, whether file or directory."""
        return self.claims.hold_current(
            lambda: _claimed(self.superblock.marker_below(parent, name))
        )

    async def find(self, parent: Directory, name: str) -> Node:
        """Return what the name means now: the kernel's lookup may have been from memory."""
        with deadline(self.config.metadata_timeout_s, name):
            return await self.lookups.find(parent, name)

    @asynccontextmanager
    async def claim_to_copy(
        self, node: Node, keys_now: Callable[[], tuple[str, ...]]
    ) -> AsyncIterator[None]:
        """Hold the claim on both keys of a copy, of which `node` shows the source.

        From the beginning its name is not asked of the store, nor lost to an answer.
        """
        with self.contents.bound(node):
            async with self.claims.hold_current(keys_now):
                yield


def cache_files_of(config: MountConfig) -> CacheFiles | None:
    """Return the files of the disk cache if there is to be one. Raises what keeps it from being."""
    if config.disk_cache_bytes is None or config.cache_dir is None:
        return None
    return CacheFiles(config.cache_dir, config.disk_cache_bytes)


def build_services(
    config: MountConfig,
    store: ObjectStore,
    budget: MemoryBudget,
    metrics: Metrics,
    nursery: trio.Nursery,
    area: StagingArea,
    cache_files: CacheFiles | None,
    *,
    probe: DescriptorProbe,
    page_cache: PageCache | None,
    volume_index: int,
) -> Services:
    """Build what the parts of one volume share."""
    superblock = Superblock(
        config.source.prefix, config.metadata_ttl_s, metrics, volume_index=volume_index
    )
    uploader = _uploader(config, store, budget, nursery)
    return Services(
        config=config,
        store=store,
        budget=budget,
        nursery=nursery,
        probe=probe,
        page_cache=page_cache,
        superblock=superblock,
        lookups=Lookups(superblock, store, nursery),
        contents=Contents(superblock, area, uploader, metrics.troubles),
        handles=Handles(volume_index),
        claims=Claims(),
        tickets=Tickets(),
        pool=PartPool(budget, nursery),
        uploader=uploader,
        cache=None
        if cache_files is None
        else _disk_cache(cache_files, config, budget, nursery, metrics),
    )


def _uploader(
    config: MountConfig, store: ObjectStore, budget: MemoryBudget, nursery: trio.Nursery
) -> Uploader:
    return Uploader(
        store,
        budget,
        nursery,
        commit_timeout_s=config.commit_timeout_s,
        part_bytes=config.part_bytes,
    )


def _disk_cache(
    files: CacheFiles,
    config: MountConfig,
    budget: MemoryBudget,
    nursery: trio.Nursery,
    metrics: Metrics,
) -> DiskCache:
    bucket = (config.store.address, config.source.bucket or "")
    return DiskCache(files, bucket, budget, nursery, metrics)


def _claimed(key: Key) -> tuple[str, ...]:
    """A directory's claim covers its name too: it may be asked for as a file."""
    if key.endswith(DIRECTORY_SUFFIX):
        return (key.removesuffix(DIRECTORY_SUFFIX), key)
    return (key,)
