"""The options of a mount, in one frozen object. The command line fills it; the core reads it.

Nothing below reads the environment or command line arguments.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, Self

from ucfuse.portability import Emulation
from ucfuse.volume import MiB

__all__ = [
    "CatalogOptions",
    "Keys",
    "MountConfig",
    "Source",
    "StoreOptions",
    "Vend",
    "VolumeEntry",
]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a volume's objects live. `bucket` None: the memory store (`memory:`).

    `prefix` is empty or ends in `/`.
    """

    bucket: str | None
    prefix: str = ""

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}" if self.bucket else "memory:"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """How to reach the store; None leaves the choice to the boto3 session.

    `address` names the store for certain, whichever option or variable led to it: what was written
    for one store is never committed to another.
    """

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    sign_requests: bool = True
    address: str = ""
    catalog_url: str = ""
    """The catalog that gives the keys, for its `volume` (`catalog.schema.volume`); empty: none."""
    volume: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogOptions:
    """A Unity Catalog server, and who we are there: by a token, or a file that has it."""

    url: str
    """Scheme, host and port, and what may stand before `/api`."""
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What requests to a store are signed with, and until when (seconds since the epoch)."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    expires_at_s: float | None = None
    """None: they do not expire."""


class Vend(Protocol):
    """Gives keys for one volume: to read it, or also to change it. Raises `StoreError`s."""

    async def __call__(self, *, for_changes: bool) -> Keys: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeEntry:
    """One volume of a mount that has many. `name`: `catalog.schema.volume`."""

    name: str
    source: Source
    store: StoreOptions
    read_only: bool
    vend: Vend | None = field(default=None, repr=False, compare=False)
    """Who gives the keys; None: they are found where AWS's tools find them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountConfig:
    """One mount. Durations in seconds, sizes in bytes.

    Where `volumes` is empty and there is no `catalog`, the mount is the one volume of `source` and
    `store`; with a `catalog` it is all that this has, or its volume `governed`.
    """

    source: Source
    mountpoint: Path
    volumes: tuple[VolumeEntry, ...] = ()
    volumes_file: Path | None = None
    """Where `volumes` were read from."""
    catalog: CatalogOptions | None = None
    governed: tuple[str, ...] = ()
    """The place in the catalog of the only volume; empty: all of them."""
    store: StoreOptions = field(default_factory=StoreOptions)
    read_only: bool = False
    allow_other: bool = False
    uid: int
    gid: int
    file_mode: int = 0o755
    dir_mode: int = 0o755
    metadata_ttl_s: float = 1.0
    freshness_s: float = 0.0
    """How old what a reader gets may be; 0: every open asks."""
    memory_limit_bytes: int = 512 * MiB
    state_dir: Path
    metadata_timeout_s: float = 30.0
    read_timeout_s: float = 60.0
    commit_timeout_s: float = 300.0
    part_bytes: int | None = None
    """Equal parts for uploads; None: parts that grow with the file."""
    staging_limit_bytes: int | None = None
    conditional_always: bool = False
    """Also a file that is written anew as a whole never goes over a version from elsewhere."""
    exclusive_at_close: bool = False
    """O_EXCL is decided by the commit, without a placeholder."""
    emulation: Emulation = Emulation.POSIX
    hardlinks_copy: bool = False
    """link(2) copies the file inside the store, if the name is free."""
    disk_cache_bytes: int | None = None
    """How much of the disk parts of files may take, below `cache_dir`; None: nothing."""
    cache_dir: Path | None = None
    xattr: bool = False
    """Whether files have extended attributes that name the version and the object."""
    metrics_port: int | None = None
    """Where Prometheus finds the counters, on 127.0.0.1; None: nowhere."""
    log_level: str = "info"

    @property
    def label(self) -> str:
        """What is mounted, for people."""
        if self.catalog is not None:
            return f"uc://{'.'.join(self.governed)}" if self.governed else self.catalog.url
        return str(self.volumes_file or self.source)

    def of_volume(self, entry: VolumeEntry) -> Self:
        """Return the options of one of its volumes."""
        return replace(
            self,
            source=entry.source,
            store=entry.store,
            read_only=entry.read_only or self.read_only,
            volumes=(),
            volumes_file=None,
            catalog=None,
            governed=(),
        )
