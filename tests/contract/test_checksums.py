"""Checksums: what was damaged on the way is refused, and what is stored can be told by its own."""

from random import Random

import pytest

from tests.contract.conftest import MakeKey
from tests.contract.features import Features
from ucfuse.errors import CorruptData
from ucfuse.store.api import Checksum, ObjectStore, Whole
from ucfuse.store.checksums import NOTHING, checksum_of, combined
from ucfuse.volume import MiB

PART = 5 * MiB
WRONG = Checksum(1)


@pytest.mark.parametrize("body", [b"", b"bytes"])
async def test_the_store_keeps_the_checksum_of_a_body(
    store: ObjectStore, key: MakeKey, features: Features, body: bytes
) -> None:
    await store.put(key("a"), body, checksum=checksum_of(body))

    head = await store.head(key("a"))
    assert head.info.size == len(body)
    if features.keeps_checksums and body:
        assert head.checksum == checksum_of(body)


@pytest.mark.promise("P40")
async def test_a_damaged_body_is_refused(
    store: ObjectStore, key: MakeKey, features: Features
) -> None:
    if not features.verifies_checksums:
        await store.put(key("a"), b"bytes", checksum=WRONG)
        return
    with pytest.raises(CorruptData):
        await store.put(key("a"), b"bytes", checksum=WRONG)


@pytest.mark.promise("P40")
async def test_a_damaged_part_is_refused(
    store: ObjectStore, key: MakeKey, features: Features
) -> None:
    upload = await store.create_upload(key("a"))
    if not features.verifies_checksums:
        await store.upload_part(key("a"), upload, 1, b"bytes", checksum=WRONG)
        return
    with pytest.raises(CorruptData):
        await store.upload_part(key("a"), upload, 1, b"bytes", checksum=WRONG)


async def test_the_whole_is_told_by_the_checksums_of_its_parts(
    store: ObjectStore, key: MakeKey, features: Features
) -> None:
    first, last = Random(1).randbytes(PART), b"the rest"
    sums = [checksum_of(first), checksum_of(last)]
    upload = await store.create_upload(key("a"))
    etags = [
        await store.upload_part(key("a"), upload, 1, first, checksum=sums[0]),
        await store.upload_part(key("a"), upload, 2, last, checksum=sums[1]),
    ]
    whole = Whole(len(first + last), combined(sums[0], sums[1], len(last)))

    etag = await store.complete_upload(key("a"), upload, etags, whole=whole)

    head = await store.head(key("a"))
    assert (head.info.etag, head.info.size) == (etag, whole.size)
    assert whole.checksum == checksum_of(first + last)
    if features.keeps_checksums:
        assert head.checksum == whole.checksum


def test_nothing_has_a_checksum_that_combines() -> None:
    assert checksum_of(b"") == NOTHING
    assert combined(NOTHING, checksum_of(b"abc"), 3) == checksum_of(b"abc")
