"""What `ucfuse recover` does with one file that it holds: commit, export, discard.

Each connects to the store that the file was written for, if it needs it, and makes sure that it
is that one: options, variables and profiles may lead elsewhere today.
"""

import argparse
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

import trio

from ucfuse.budget import MemoryBudget
from ucfuse.catalog.interface import text_of
from ucfuse.cli import default_paths
from ucfuse.cli.catalog_options import TOKEN_VARIABLE
from ucfuse.cli.client import Silent, ask
from ucfuse.cli.complaints import line_of
from ucfuse.cli.mounting import DEV_ADDRESS, reach_embedded
from ucfuse.config import CatalogOptions, Source, StoreOptions
from ucfuse.errors import ConfigError, ObjectChanged, VolumeError
from ucfuse.fs.recovery import Recovery
from ucfuse.metrics import Metrics
from ucfuse.registry import list_records
from ucfuse.store.address import locate
from ucfuse.store.conditions import fit
from ucfuse.store.connect import check, connect
from ucfuse.store.s3.vended import VendedCredentials
from ucfuse.tasks import deadline
from ucfuse.units import size_text
from ucfuse.volume import MiB
from ucfuse.writing.area import StagingArea
from ucfuse.writing.leftovers import Leftover, settle
from ucfuse.writing.records import Origin
from ucfuse.writing.upload import Uploader

__all__ = ["commit", "discard", "export"]

# Enough for a few parts in flight; nothing else runs in this process.
MEMORY_BYTES = 256 * MiB
COPY_BYTES = 8 * MiB
CATALOG_TIMEOUT_S = 30.0


def commit(leftover: Leftover, options: argparse.Namespace) -> int:
    """Make the file the object of its key."""
    if leftover.record is None:
        return _failed(leftover, "its key is not known; export it and copy it where it belongs")
    why_not = _in_store(leftover, options, partial(_commit, leftover, force=options.force))
    return _failed(leftover, why_not) if why_not else 0


def discard(leftover: Leftover, options: argparse.Namespace) -> int:
    """Remove the file, and what it has in the bucket beside objects."""
    record = leftover.record
    if record is None or (record.upload is None and record.nonce is None):
        settle(leftover)
        return 0
    why_not = _in_store(leftover, options, lambda recovery: recovery.discard(leftover))
    return _failed(leftover, why_not) if why_not else 0


def export(leftover: Leftover, options: argparse.Namespace) -> int:
    """Write the file to a local path, with the bytes of its base where they are to be had."""
    extent, target = leftover.extent(), options.target
    missing = sum(stop - start for start, stop in extent.from_base)
    with _made(target) as file:
        _copy_out(leftover, file)
        merge = partial(_merge, leftover, file)
        why_not = _in_store(leftover, options, merge) if missing else ""
    if why_not:
        told = f"zeros stand for {size_text(missing)} of it: {why_not}"
        print(f"ucfuse: {target}: {told}", file=sys.stderr)
        return 1
    return 0


async def _commit(leftover: Leftover, recovery: Recovery, *, force: bool) -> None:
    try:
        info = await recovery.commit(leftover, force=force)
    except ObjectChanged as cause:
        hint = "bytes of the version it grew from are needed; export it" if force else "see --force"
        raise ObjectChanged(cause.subject, f"another version is in the store; {hint}") from cause
    print(f"{info.key}: committed, {size_text(info.size)}")


async def _merge(leftover: Leftover, file: BinaryIO, recovery: Recovery) -> None:
    await recovery.merge_base(leftover, file)


@contextmanager
def _made(target: Path) -> Iterator[BinaryIO]:
    """Yield a file that must be new. It goes again if the block is interrupted, or the disk full.

    Raises `OSError`, which names it.
    """
    with target.open("x+b") as file:
        try:
            yield file
            file.flush()
        except BaseException as error:
            target.unlink(missing_ok=True)
            if isinstance(error, OSError) and not error.filename:
                raise OSError(error.errno, error.strerror, str(target)) from error
            raise


def _copy_out(leftover: Leftover, file: BinaryIO) -> None:
    """Write the program's own bytes, each in its place."""
    extent = leftover.extent()
    with leftover.path.open("rb") as source:
        file.truncate(extent.size)
        for start, stop in extent.ranges:
            source.seek(start)
            file.seek(start)
            while start < stop and (data := source.read(min(COPY_BYTES, stop - start))):
                file.write(data)
                start += len(data)


# --- the store -------------------------------------------------------------------------------


def _in_store(
    leftover: Leftover,
    options: argparse.Namespace,
    work: Callable[[Recovery], Awaitable[None]],
) -> str:
    """Do `work` with a connection to the store of the file; return why it failed, or nothing."""

    async def connected() -> None:
        async with _recovery(leftover, options) as recovery:
            await work(recovery)

    failures: list[str] = []
    try:
        trio.run(connected)
    except* (VolumeError, ConfigError, OSError) as group:
        failures.append(line_of(group))
    return failures[0] if failures else ""


@asynccontextmanager
async def _recovery(leftover: Leftover, options: argparse.Namespace) -> AsyncIterator[Recovery]:
    assert leftover.head is not None
    origin, metrics = leftover.head.origin, Metrics()
    reach = await _reach(origin, options)
    async with AsyncExitStack() as stack:
        area = stack.enter_context(StagingArea(leftover.directory.parent))
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)
        vended = None
        if origin.volume:
            vended = await stack.enter_async_context(_vended(leftover, reach, options, nursery))
        store = await connect(Source(origin.bucket), reach, metrics, vended=vended)
        try:
            await check(store, Source(origin.bucket, _prefix_of(leftover)))
            store, _ = await fit(store, _prefix_of(leftover))
            uploader = Uploader(store, MemoryBudget(MEMORY_BYTES), nursery)
            yield Recovery(store, uploader, area, nursery)
        finally:
            with trio.CancelScope(shield=True):
                await store.aclose()


@asynccontextmanager
async def _vended(
    leftover: Leftover, reach: StoreOptions, options: argparse.Namespace, nursery: trio.Nursery
) -> AsyncIterator[VendedCredentials]:
    """Have the keys that the catalog gives for the volume of the file. Raises `ConfigError`."""
    from ucfuse.catalog.unity.catalog import connected  # imports an HTTP client

    assert leftover.head is not None
    assert leftover.record is not None
    origin, place = leftover.head.origin, tuple(leftover.head.origin.volume.split("."))
    token = os.environ.get(TOKEN_VARIABLE)
    server = CatalogOptions(url=origin.catalog_url, token=token, token_file=options.token_file)
    async with connected(server, reach, nursery) as catalog:
        with deadline(CATALOG_TIMEOUT_S, text_of(place)):
            entry = await catalog.volume(place)
        is_there = leftover.record.key.startswith(entry.source.prefix)
        if entry.source.bucket != origin.bucket or not is_there:
            raise ConfigError(f"{text_of(place)} lies elsewhere by now: {entry.source}; export it")
        assert entry.vend is not None
        yield VendedCredentials(text_of(place), entry.vend, nursery)


async def _reach(origin: Origin, options: argparse.Namespace) -> StoreOptions:
    """Return what reaches the store that the journal names. Raises `ConfigError`."""
    if origin.endpoint.startswith(DEV_ADDRESS):
        return reach_embedded(_embedded_url(origin.endpoint), origin.endpoint)
    reach = StoreOptions(
        endpoint_url=options.endpoint_url or origin.endpoint_url,
        region=options.region or origin.region,
        profile=options.profile or origin.profile,
        sign_requests=origin.sign_requests,
    )
    found = await locate(Source(origin.bucket or None), reach)
    if found.address != origin.endpoint:
        raise ConfigError(
            f"it was written for {origin.endpoint}, but this would reach {found.address};"
            " see --endpoint-url and --region"
        )
    return found


def _prefix_of(leftover: Leftover) -> str:
    """Return the directory of the key: credentials may reach no other one."""
    assert leftover.record is not None
    directory, slash, _ = leftover.record.key.rpartition("/")
    return directory + slash


def _embedded_url(address: str) -> str:
    runtime_dir = default_paths.runtime_dir(os.environ)
    for record in list_records(runtime_dir):
        try:
            answer = next(ask(runtime_dir, record, "status"), {})
        except Silent:
            continue
        if answer.get("address") == address:
            return str(answer["endpoint_url"])
    raise ConfigError("its store is not running; `ucfuse mount --dev` starts it")


def _failed(leftover: Leftover, text: str) -> int:
    print(f"ucfuse: {leftover.name}: {text}", file=sys.stderr)
    return 1
