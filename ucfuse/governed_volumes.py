"""The volumes of a Unity Catalog in a mount: each is opened when something in it is first used.

`assembly` makes one `GovernedVolumes` for a mount and ends it; the tree asks it to open. A volume
that is open stays so until the mount ends, whatever becomes of the catalog.

Concurrency: each open volume is a task of the nursery that this class opens and closes.
"""

import logging
from types import TracebackType
from typing import Self

import trio

from ucfuse.budget import GrowingBudget
from ucfuse.catalog.interface import Catalog, Place, text_of
from ucfuse.config import MountConfig
from ucfuse.errors import ConfigError, NotFound, NotInCatalog, StoreError, StoreRefused
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.fs.portability_log import Portability
from ucfuse.mounted_volume import MountedVolume
from ucfuse.reading.pagecache import PageCache
from ucfuse.tasks import deadline

__all__ = ["GovernedVolumes"]

log = logging.getLogger(__name__)

# What ended mounts left of a volume is looked at when it is opened. Large files go on behind it.
REPLAY_PATIENCE_S = 10.0


class GovernedVolumes:
    """Opens volumes and owns them. `nursery` has what renews their credentials."""

    def __init__(
        self,
        config: MountConfig,
        catalog: Catalog,
        policy: Portability,
        page_cache: PageCache,
        nursery: trio.Nursery,
    ) -> None:
        self._config = config
        self._catalog = catalog
        self._policy = policy
        self._page_cache = page_cache
        self._nursery = nursery
        self.budget = GrowingBudget(config.memory_limit_bytes)
        self.opened: dict[Place, MountedVolume] = {}
        """Those that are open, and those that could not be opened when they were last asked for."""
        self._ending = trio.Event()
        # Who looks at what an ended session left keeps others from it.
        self._replaying = trio.Lock()

    async def __aenter__(self) -> Self:
        self._exit = trio.open_nursery()
        self._serving = await self._exit.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.set()
        await self._exit.__aexit__(kind, error, trace)

    async def open(self, place: Place, index: int) -> VolumeFilesystem:
        """Open a volume. Raises the `StoreError` that says why it cannot be used."""
        volume = MountedVolume(
            ".".join(place), self._config, label=text_of(place), is_located=False
        )
        self.opened[place] = volume
        try:
            with deadline(self._config.metadata_timeout_s, text_of(place)):
                await self._connect(volume, place)
            fs: VolumeFilesystem = await self._serving.start(self._serve, volume, index)
        except NotFound as cause:
            del self.opened[place]
            raise NotInCatalog(text_of(place), cause.detail) from cause
        except (StoreError, ConfigError) as cause:
            volume.trouble = str(cause)
            await volume.close_store()
            if isinstance(cause, ConfigError):
                raise StoreRefused(text_of(place), str(cause)) from cause
            raise
        return fs

    async def _connect(self, volume: MountedVolume, place: Place) -> None:
        entry = await self._catalog.volume(place)
        volume.config = self._config.of_volume(entry)
        volume.is_located = True
        volume.vend = entry.vend
        await volume.connect(self._nursery, is_checked=False)
        log.info("%s is opened: %s", text_of(place), volume.config.source)

    async def _serve(
        self,
        volume: MountedVolume,
        index: int,
        task_status: trio.TaskStatus[VolumeFilesystem] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        try:
            fs = volume.file_system(self.budget.join(), self._policy, self._page_cache, index)
            async with fs:
                async with self._replaying:
                    await fs.replay(REPLAY_PATIENCE_S)
                task_status.started(fs)
                await self._ending.wait()
        finally:
            with trio.CancelScope(shield=True):
                await volume.close_store()
