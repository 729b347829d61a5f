"""One volume of a mount: its options, store, counters and, once it is built, its files.

`assembly` makes those that are there from the start, `governed_volumes` those of a catalog.
"""

from dataclasses import dataclass, field, replace

import trio

from ucfuse.budget import MemoryBudget
from ucfuse.config import MountConfig, Vend
from ucfuse.errors import ConfigError, NotPermitted, StoreError
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.fs.portability_log import Portability
from ucfuse.metrics import Metrics
from ucfuse.reading.pagecache import PageCache
from ucfuse.store.address import locate
from ucfuse.store.api import ObjectStore
from ucfuse.store.conditions import HeadFirst, fit
from ucfuse.store.connect import check, connect
from ucfuse.store.linking import CopyCondition
from ucfuse.store.permit import ChangePermit
from ucfuse.store.s3.vended import TO_CHANGE, VendedCredentials

__all__ = ["MountedVolume"]


@dataclass(slots=True, eq=False)
class MountedVolume:
    """One volume of the mount. `name` empty: the only one. Owns its store."""

    name: str
    config: MountConfig
    vend: Vend | None = None
    label: str = ""
    """What the log calls it, if not by its source."""
    is_located: bool = True
    """Whether it is known where it lies."""
    metrics: Metrics = field(default_factory=Metrics)
    store: ObjectStore | None = None
    copy_condition: CopyCondition | None = None
    """Found out where hard links are copies."""
    fs: VolumeFilesystem | None = None
    permit: ChangePermit | None = None
    store_warnings: list[str] = field(default_factory=list)
    trouble: str = ""
    """Why it could not be opened."""
    troubles: dict[str, str] = field(default_factory=dict)
    """Why its keys cannot be had or renewed, by what they are for."""

    @property
    def is_read_only(self) -> bool:
        """Whether every change is refused, as far as is known."""
        return self.config.read_only or bool(self.permit and self.permit.refusal)

    @property
    def problem(self) -> str:
        """What is wrong with it, for people; empty: nothing."""
        if self.permit is not None and self.permit.refusal:
            # That there are no keys to change it is no trouble beside.
            others = [text for purpose, text in self.troubles.items() if purpose != TO_CHANGE]
            return "; ".join([*others, f"read-only: {self.permit.refusal}"])
        return self.trouble or "; ".join(dict.fromkeys(self.troubles.values()))

    @property
    def warnings(self) -> list[str]:
        """What the user should know of its store."""
        return self.store_warnings + (self.permit.warnings if self.permit else [])

    async def connect(self, nursery: trio.Nursery, *, is_checked: bool) -> None:
        """Make its store. Raises `ConfigError`: it cannot be reached, or asked if `is_checked`."""
        config = replace(self.config, store=await locate(self.config.source, self.config.store))
        self.config = config
        vended = None
        if self.vend is not None:
            vended = VendedCredentials(self.label, self.vend, nursery, self.troubles)
        self.store = store = await connect(
            config.source,
            config.store,
            self.metrics,
            nursery=nursery,
            away_after_s=config.read_timeout_s,
            vended=vended,
        )
        if vended is not None:
            self.store = store = HeadFirst(store, is_needed=False)
            prefix, timeout_s = config.source.prefix, config.metadata_timeout_s
            self.permit = ChangePermit(self.label, vended, store, prefix, timeout_s=timeout_s)
            await vended.at_hand(for_changes=False)
        if is_checked:
            await check(store, config.source)
        if vended is None and not config.read_only:
            await self._fit(store)

    async def _fit(self, store: ObjectStore) -> None:
        prefix = self.config.source.prefix
        self.store, warning = await fit(store, prefix)
        self.store_warnings += [warning] if warning else []
        if self.config.hardlinks_copy:
            self.copy_condition = CopyCondition(self.store, prefix)
            await _require_links(self.copy_condition)

    def file_system(
        self, budget: MemoryBudget, policy: Portability, page_cache: PageCache, index: int = 0
    ) -> VolumeFilesystem:
        """Return the files of it, which the caller enters and leaves."""
        assert self.store is not None
        self.fs = VolumeFilesystem(
            self.config,
            self.store,
            budget,
            self.metrics,
            policy.probe,
            page_cache=page_cache,
            volume_index=index,
            permit=self.permit.require if self.permit else None,
            copy_condition=self.copy_condition,
            portability=policy.below(self.name.replace(".", "/")),
        )
        return self.fs

    async def close_store(self) -> None:
        """End its connections."""
        if self.store is not None:
            await self.store.aclose()


async def _require_links(copy_condition: CopyCondition) -> None:
    """Raise `ConfigError` unless of several links to one name one wins."""
    try:
        await copy_condition.is_ignored()
    except NotPermitted as cause:
        raise ConfigError(
            f"--hardlinks copy: {cause.detail}; leave it out, or use another store"
        ) from cause
    except StoreError as cause:
        raise ConfigError(
            f"--hardlinks copy: it could not be tried ({cause}); see the permissions s3:PutObject"
            " and s3:DeleteObject, or leave it out"
        ) from cause
