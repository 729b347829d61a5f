"""Serving reads: from staging where bytes were written here, else from the store.

`fs` calls `read` for every READ, and `seed` with the bytes that an open fetched already. Bytes of
the store always belong to the version that the inode shows now (or, of a dirty file, to its
base): every request carries its ETag. Any other version is `ObjectChanged`, never a mix.
"""

from dataclasses import replace
from functools import partial

import trio

from ucfuse.budget import Reservation
from ucfuse.errors import ObjectChanged, ObjectMissing
from ucfuse.fs.file_content import FileContent
from ucfuse.fs.services import Services
from ucfuse.reading.pagecache import MOST_PUSHED_BYTES
from ucfuse.reading.prefetch import PrefetchReader
from ucfuse.store.api import Buffer, Bytes, Fetched
from ucfuse.tasks import deadline
from ucfuse.volume import HandleId, ObjectInfo
from ucfuse.writing.staging import Hole

__all__ = ["Reads"]


class _VersionSource:
    """Ranges of the version that a file's unwritten bytes come from."""

    def __init__(self, services: Services, content: FileContent) -> None:
        self._services = services
        self._content = content

    async def fetch(self, start: int, stop: int) -> Bytes:
        """Return exactly `[start, stop)`. Raises `ObjectChanged` if the version is gone."""
        content, cache = self._content, self._services.cache
        while True:
            key, version = self._services.superblock.key(content.file), content.store_version
            if version is None:
                raise ObjectChanged(key, "the version being read was replaced")
            present = replace(version, key=key)
            try:
                if cache is None:
                    return await self._ask(present, start, stop)
                return await cache.read_through(present, start, stop, partial(self._ask, present))
            except (ObjectChanged, ObjectMissing) as cause:
                if self._moved(key, version.etag):
                    continue
                raise ObjectChanged(key, "the version being read is gone") from cause

    async def _ask(self, version: ObjectInfo, start: int, stop: int) -> Bytes:
        services, began = self._services, trio.current_time()
        with deadline(services.config.read_timeout_s, version.key):
            answer = await services.store.get(version.key, start, stop, if_match=version.etag)
        assert isinstance(answer, Fetched)
        services.superblock.confirm(self._content.file, answer.info.etag, began)
        return answer.data

    def _moved(self, key: str, etag: str) -> bool:
        """Whether this mount renamed or committed the file while the request ran."""
        now = self._content.store_version
        return now is not None and (
            self._services.superblock.key(self._content.file) != key or now.etag != etag
        )


class Reads:
    """The read side of `VolumeFilesystem`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def read(
        self, content: FileContent, offset: int, length: int, handle: HandleId
    ) -> Buffer:
        """Return up to `length` bytes at `offset`, fewer only at the end of the file."""
        with deadline(self._services.config.read_timeout_s, content.file.path):
            if content.staging is not None:
                return await self._read_staged(content, offset, length, handle)
            data = await self.reader(content).read(offset, length, handle)
        content.delivered(offset, len(data))
        return data

    def seed(self, content: FileContent, data: Bytes, reservation: Reservation) -> None:
        """Keep the first bytes of the present version for the reads that follow an open."""
        if content.staging is None and data:
            self.reader(content).seed(0, data, reservation)
        else:
            reservation.release()

    async def cached(self, version: ObjectInfo, length: int) -> bytes | None:
        """Return the first bytes of a version if the disk cache has them."""
        cache = self._services.cache
        return None if cache is None else await cache.find(version, 0, length)

    def cache_soon(self, answer: Fetched) -> None:
        """Keep in the disk cache, if there is one, what the store answered."""
        if self._services.cache is not None:
            self._services.cache.keep_soon(answer.info, answer.start, answer.data)

    def push(self, content: FileContent) -> None:
        """Give all bytes of a small file to the kernel while its open is being answered.

        The caller registers the new handle before the next checkpoint: as soon as the kernel may
        ask for pages or write to them, nothing is pushed any more.
        """
        cache, reader = self._services.page_cache, content.reader
        if cache is None or reader is None or not content.may_be_pushed:
            return
        data = reader.whole(MOST_PUSHED_BYTES)
        if data is None or not cache.push(content.file.number, data):
            return
        content.delivered(0, len(data))
        if content.file.pins == 1:  # the open under way; an open that is repeated wants them too
            content.close_reader()

    def reader(self, content: FileContent) -> PrefetchReader:
        """Return the reader of the bytes that the store has, made at first use."""
        if content.reader is None:
            version = content.store_version
            size = version.size if version is not None else 0
            source = _VersionSource(self._services, content)
            content.reader = PrefetchReader(source, size, self._services.pool)
        return content.reader

    async def _read_staged(
        self, content: FileContent, offset: int, length: int, handle: HandleId
    ) -> Buffer:
        staging = content.staging
        assert staging is not None
        pieces: list[Buffer] = []
        for piece in await staging.read(offset, length):
            if isinstance(piece, Hole):
                pieces.append(await self._read_hole(content, piece, handle))
            else:
                pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _read_hole(self, content: FileContent, hole: Hole, handle: HandleId) -> Buffer:
        return await self.reader(content).read(hole.start, hole.stop - hole.start, handle)
