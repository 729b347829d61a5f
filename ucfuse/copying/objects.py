"""The objects below a prefix of a bucket, as one end of a copy.

Directories are listed one by one: stores agree on what is in one, but not on the order of all keys.
A change carries the condition that what it replaces is what was seen, so nobody's commit is lost.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from ucfuse.copying.trees import File, Page, Trouble
from ucfuse.errors import ObjectMissing, VolumeError
from ucfuse.names.rules import can_be_name
from ucfuse.store.api import (
    ABSENT,
    Buffer,
    Bytes,
    Checksum,
    Condition,
    Fetched,
    ObjectStore,
    UploadId,
    Whole,
)
from ucfuse.store.checksums import NOTHING, checksum_of, combined
from ucfuse.volume import DIRECTORY_SUFFIX, ETag, Key, ObjectInfo
from ucfuse.writing.confirmation import confirmed
from ucfuse.writing.parts import Part, PartGrid

__all__ = ["ObjectTree"]

KEY_LIMIT_BYTES = 1024
ABORT_TIMEOUT_S = 5.0
NANOSECONDS = 1_000_000_000

NO_LOCAL_NAME = "no file can have this name"
BESIDE_DIRECTORY = "there is a directory of this name too"


class ObjectTree:
    """One bucket below `prefix` (empty, or ends in `/`). Borrows the store.

    `has_paths`: names must be paths that a file system can show, since the other end is one, or a
    mount shows them. `dirty`: files that a mount here has written to and not committed.
    """

    def __init__(
        self,
        store: ObjectStore,
        bucket: str,
        prefix: str,
        *,
        has_paths: bool,
        dirty: Sequence[str] = (),
    ) -> None:
        self.store = store
        self._bucket = bucket
        self._prefix = prefix
        self._has_paths = has_paths
        self.dirty = frozenset(dirty)

    def describe(self, name: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{name}"

    def key(self, name: str) -> Key:
        return Key(self._prefix + name)

    async def pages(self, directory: str) -> AsyncIterator[Page]:
        held: list[File] = []
        token: str | None = None
        while True:
            told = await self.store.list_page(self.key(directory), delimited=True, token=token)
            page = Page(files=held + [self._file(each) for each in told.objects])
            page.directories = [prefix.removeprefix(self._prefix) for prefix in told.prefixes]
            page.files = [file for file in page.files if file.name != directory]
            token = told.next_token
            if self._has_paths:
                held = self._hold_back(page) if token is not None else []
                await self._sort_out(page)
            yield page
            if token is None:
                return

    def _hold_back(self, page: Page) -> list[File]:
        """Take out files whose name may still turn out to be a directory's too: `a/` is told after
        `a-b`, which may end a page."""
        last = max([file.name for file in page.files] + page.directories, default="")
        held = [file for file in page.files if last.startswith(file.name)]
        page.files = [file for file in page.files if not last.startswith(file.name)]
        return held

    async def _sort_out(self, page: Page) -> None:
        """Move to `others` what no file system can show."""
        files, directories = page.files, page.directories
        taken = {directory.removesuffix(DIRECTORY_SUFFIX) for directory in directories}
        page.files = []
        for file in files:
            if not can_be_name(file.name.rpartition(DIRECTORY_SUFFIX)[2]):
                page.others.append(Trouble(file.name, NO_LOCAL_NAME))
            elif file.name in taken:
                page.others.append(Trouble(file.name, BESIDE_DIRECTORY))
            elif file.name not in self.dirty:
                page.files.append(file)
        page.directories = []
        for directory in directories:
            if can_be_name(directory.removesuffix(DIRECTORY_SUFFIX).rpartition("/")[2]):
                page.directories.append(directory)
            else:
                page.others += [
                    Trouble(info.key.removeprefix(self._prefix), NO_LOCAL_NAME)
                    async for info in self._all_below(directory)
                ]

    async def _all_below(self, directory: str) -> AsyncIterator[ObjectInfo]:
        token: str | None = None
        while True:
            told = await self.store.list_page(self.key(directory), delimited=False, token=token)
            for info in told.objects:
                yield info
            token = told.next_token
            if token is None:
                return

    async def find(self, name: str) -> File | None:
        """Return the object of exactly this name, None if there is none."""
        try:
            return self._file((await self.store.head(self.key(name))).info)
        except ObjectMissing:
            return None

    async def has_directory(self, directory: str) -> bool:
        """Say whether there is anything in the directory, or a marker of it."""
        page = await self.store.list_page(self.key(directory), delimited=True, max_keys=1)
        return bool(page.objects or page.prefixes)

    async def checksum(self, file: File) -> Checksum | None:
        """Return the checksum of this version, if the store tells one."""
        head = await self.store.head(self.key(file.name))
        return head.checksum if head.info.etag == file.etag else None

    async def read(self, file: File, start: int, stop: int) -> Bytes:
        is_whole = start == 0 and stop == file.size
        answer = await self.store.get(
            self.key(file.name), start, stop, if_match=file.etag, is_whole=is_whole
        )
        assert isinstance(answer, Fetched)
        return answer.data

    def refusal(self, name: str) -> str | None:
        if name in self.dirty:
            return "it is being written through the mount; let that be closed first"
        if len(self.key(name).encode()) > KEY_LIMIT_BYTES:
            return f"the key would have over {KEY_LIMIT_BYTES} bytes"
        return None

    async def put(self, name: str, file: File, body: Buffer, present: File | None) -> None:
        condition = _condition(present)
        await self.store.put(self.key(name), body, condition=condition, checksum=checksum_of(body))

    async def copy(self, name: str, file: File, source: Key, present: File | None) -> None:
        """Let the store copy exactly this version of another of its objects."""
        assert file.etag is not None
        condition = _condition(present)
        await self.store.copy(source, file.etag, self.key(name), condition=condition)

    def draft(self, name: str, file: File, present: File | None) -> "_Upload":
        plan = self.parts(file.size)
        return _Upload(self.store, self.key(name), plan, _condition(present))

    def parts(self, size: int) -> Sequence[Part]:
        return PartGrid().plan(size)

    async def make_directory(self, name: str, *, is_empty: bool) -> None:
        if name and is_empty:
            await self.store.put(self.key(name), b"", condition=None, checksum=NOTHING)

    async def remove(self, entry: File | str) -> None:
        if isinstance(entry, File):
            await self.store.delete(self.key(entry.name), if_match=entry.etag)
            return
        async for info in self._all_below(entry):
            if info.key.removeprefix(self._prefix) not in self.dirty:
                await self.store.delete(info.key, if_match=info.etag)

    def _file(self, info: ObjectInfo) -> File:
        name, mtime_ns = info.key.removeprefix(self._prefix), (info.mtime_s or 0) * NANOSECONDS
        return File(name, info.size, mtime_ns, info.etag)


def _condition(present: File | None) -> Condition:
    return ABSENT if present is None else present.etag


@dataclass(slots=True, eq=False)
class _Upload:
    """A multipart upload, begun with its first part."""

    store: ObjectStore
    key: Key
    plan: Sequence[Part]
    condition: Condition
    upload: UploadId | None = None
    etags: dict[int, ETag] = field(default_factory=dict)
    checksums: dict[int, Checksum] = field(default_factory=dict)
    creating: trio.Lock = field(default_factory=trio.Lock)

    async def write(self, part: Part, body: Buffer) -> None:
        async with self.creating:
            if self.upload is None:
                self.upload = await self.store.create_upload(self.key)
        checksum = self.checksums[part.number] = checksum_of(body)
        self.etags[part.number] = await self.store.upload_part(
            self.key, self.upload, part.number, body, checksum=checksum
        )

    async def finish(self) -> None:
        assert self.upload is not None
        etag = await self.store.complete_upload(
            self.key,
            self.upload,
            [self.etags[part.number] for part in self.plan],
            condition=self.condition,
            whole=_whole(self.plan, self.checksums),
        )
        self.upload = None
        await confirmed(self.store, self.key, etag)

    async def abort(self) -> None:
        if self.upload is None:
            return
        with trio.move_on_after(ABORT_TIMEOUT_S, shield=True):
            try:
                await self.store.abort_upload(self.key, self.upload)
            except VolumeError:
                return  # its parts stay until a lifecycle rule of the bucket removes them


def _whole(plan: Sequence[Part], checksums: Mapping[int, Checksum]) -> Whole:
    checksum, size = NOTHING, 0
    for part in plan:
        checksum = combined(checksum, checksums[part.number], part.size)
        size += part.size
    return Whole(size, checksum)
