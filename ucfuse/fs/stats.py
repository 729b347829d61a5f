"""Attributes of files: when a stat asks the store, and what is told without asking.

Concurrency: trio loop only.
"""

import logging

from ucfuse.errors import StoreUnavailable, Throttled
from ucfuse.fs.caller import Described
from ucfuse.fs.services import Services
from ucfuse.names.inodes import File, Node
from ucfuse.tasks import deadline

__all__ = ["Stats"]

log = logging.getLogger(__name__)

# The kernel asks for the attributes of an open file before it reads from its own cache. While the
# store is away, such a read waits this long, and then not again for OPEN_FILE_VALID_S.
OPEN_FILE_PATIENCE_S = 1.0
OPEN_FILE_VALID_S = 5.0


class Stats:
    """The attribute side of `VolumeFilesystem`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def renew(self, file: File) -> float:
        """Ask the store if the attributes have expired; return how long they are valid, in s."""
        superblock = self._services.superblock
        content = self._services.contents.known(file)
        if not file.has_name or superblock.is_fresh(file):
            pass
        elif content is None or not content.handle_count:
            with deadline(self._services.config.metadata_timeout_s, file.path):
                await self._services.lookups.renew(file)
        elif not await self._renew_open(file):
            return OPEN_FILE_VALID_S
        return superblock.valid_s(file)

    def describe(self, node: Node) -> Described:
        """Return what is known of a node now; asks nobody."""
        services = self._services
        bucket = services.config.source.bucket
        key = services.superblock.key(node)
        source = f"s3://{bucket}/{key}" if bucket else f"memory:{key}"
        if not isinstance(node, File):
            return Described(path=node.path, source=source)
        content, version = services.contents.known(node), node.version
        is_dirty = content is not None and content.is_dirty
        return Described(
            path=node.path,
            source=source,
            etag=version.etag if version is not None and not is_dirty else None,
            size=content.size if content is not None else version.size if version else 0,
            mtime_s=version.mtime_s if version is not None else None,
            has_name=node.has_name,
            handle_count=content.handle_count if content is not None else 0,
            uncommitted=services.contents.uncommitted_of(content) if content else None,
        )

    async def _renew_open(self, file: File) -> bool:
        """Ask about an open file; if there is no answer, it shows what it showed before.

        An errno here would be the result of a read of cached bytes.
        """
        patience_s = min(OPEN_FILE_PATIENCE_S, self._services.config.metadata_timeout_s)
        try:
            with deadline(patience_s, file.path):
                await self._services.lookups.refresh(file)
        except (StoreUnavailable, Throttled) as cause:
            log.info("%s: attributes of an open file not renewed: %s", file.path, cause)
            return False
        return True
