"""Parts leave while a file is written: which, when, how often, and what a failure does."""

from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.unit.uploads import KEY, Bench, Hook, make_bench
from ucfuse.errors import (
    AccessDenied,
    NoSuchUpload,
    ObjectChanged,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from ucfuse.store.api import ABSENT
from ucfuse.volume import MiB, ObjectInfo
from ucfuse.writing.staging import Staging
from ucfuse.writing.upload import Upload


@pytest.fixture
async def bench(nursery: trio.Nursery, tmp_path: Path) -> Bench:
    return make_bench(tmp_path, nursery)


class Writer:
    """What `fs` does for a program that writes a file."""

    def __init__(
        self, bench: Bench, staging: Staging | None = None, base: ObjectInfo | None = None
    ) -> None:
        self.staging = staging or bench.area.new(KEY, 0)
        self.upload: Upload = bench.uploader.begin(self.staging, lambda: KEY, base=base)
        self.data = bytearray()

    async def write(self, offset: int, data: bytes) -> None:
        self.upload.raise_failure()
        self.upload.changes(offset, offset + len(data))
        await self.staging.write(offset, data)
        self.data[len(self.data) : offset + len(data)] = bytes(
            max(0, offset + len(data) - len(self.data))
        )
        self.data[offset : offset + len(data)] = data
        await self.upload.written(offset, offset + len(data))

    async def write_all(self, size: int, start: int = 0) -> None:
        for offset in range(start, start + size, MiB):
            await self.write(offset, Random(offset).randbytes(min(MiB, start + size - offset)))

    async def truncate(self, size: int) -> None:
        self.upload.cuts(min(size, self.staging.size))
        await self.staging.truncate(size)
        self.data[size:] = b""
        self.data += bytes(size - len(self.data))


async def parts_sent(bench: Bench, count: int) -> None:
    while bench.store.requests["PART"] < count:
        await wait_all_tasks_blocked()
    await wait_all_tasks_blocked()


async def test_full_parts_leave_before_the_commit_and_go_once(bench: Bench) -> None:
    writer = Writer(bench)
    await writer.write_all(20 * MiB)
    await parts_sent(bench, 2)
    assert bench.store.requests == {"CREATE": 1, "PART": 2}

    info = await writer.upload.commit(KEY, ABSENT)

    assert bench.store.requests == {"CREATE": 1, "PART": 3, "COMPLETE": 1, "HEAD": 1}
    assert await bench.stored() == writer.data
    assert info == (await bench.other.head(KEY)).info
    assert bench.budget.reserved_bytes == 0


async def test_a_file_of_8_mib_is_still_one_put(bench: Bench) -> None:
    writer = Writer(bench)
    await writer.write_all(8 * MiB)

    await writer.upload.commit(KEY, ABSENT)

    assert bench.store.requests == {"PUT": 1}


async def test_a_file_extended_first_and_then_written_in_order_streams(bench: Bench) -> None:
    writer = Writer(bench)
    await writer.truncate(20 * MiB)
    await writer.write_all(20 * MiB)
    await parts_sent(bench, 2)

    await writer.upload.commit(KEY, ABSENT)

    assert bench.store.requests["PART"] == 3
    assert await bench.stored() == writer.data


async def test_zeros_that_nobody_wrote_go_with_the_commit(bench: Bench) -> None:
    writer = Writer(bench)
    await writer.truncate(30 * MiB)
    await writer.write_all(8 * MiB, start=16 * MiB)

    await writer.upload.commit(KEY, ABSENT)

    assert await bench.stored() == writer.data
    assert bench.store.requests["PART"] == 4


async def test_a_part_written_again_is_sent_again(bench: Bench) -> None:
    """As zip files are: the header at the beginning is written last."""
    writer = Writer(bench)
    await writer.write_all(20 * MiB)
    await parts_sent(bench, 2)
    await writer.write(5, b"header")

    await writer.upload.commit(KEY, ABSENT)

    assert await bench.stored() == writer.data
    assert bench.store.requests["PART"] == 4


async def test_a_part_written_again_while_it_is_sent_is_sent_again(bench: Bench) -> None:
    writer = Writer(bench)
    go = trio.Event()
    bench.store.before["PART"] = go.wait
    await writer.write_all(20 * MiB)
    await parts_sent(bench, 2)
    await writer.write(5, b"header")
    go.set()

    await writer.upload.commit(KEY, ABSENT)

    assert await bench.stored() == writer.data
    assert bench.store.requests["PART"] == 4


@pytest.mark.parametrize("size_mib", [2, 9, 12, 17])
async def test_a_file_cut_after_parts_left_is_stored_as_it_is(bench: Bench, size_mib: int) -> None:
    writer = Writer(bench)
    await writer.write_all(20 * MiB)
    await parts_sent(bench, 2)
    await writer.truncate(size_mib * MiB)
    await writer.truncate(18 * MiB)
    await writer.truncate((size_mib + 1) * MiB)

    await writer.upload.commit(KEY, ABSENT)

    assert await bench.stored() == writer.data
    await bench.assert_nothing_left()


async def test_a_writer_waits_for_room(nursery: trio.Nursery, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, nursery, budget_bytes=8 * MiB)
    writer = Writer(bench)
    go = trio.Event()
    bench.store.before["PART"] = go.wait
    nursery.start_soon(writer.write_all, 40 * MiB)
    while writer.staging.size < 16 * MiB:
        await wait_all_tasks_blocked()
    await wait_all_tasks_blocked()
    assert writer.staging.size == 16 * MiB  # the second part has no room yet
    assert bench.store.requests["PART"] == 1
    assert bench.budget.reserved_bytes == 8 * MiB
    go.set()
    while writer.staging.size < 40 * MiB:
        await wait_all_tasks_blocked()

    await writer.upload.commit(KEY, ABSENT)

    assert await bench.stored() == writer.data


async def test_the_error_of_a_part_is_answered_once_and_the_commit_mends_it(bench: Bench) -> None:
    writer = Writer(bench)

    async def fail_once() -> None:
        del bench.store.before["PART"]
        raise StoreUnavailable(KEY)

    bench.store.before["PART"] = fail_once
    await writer.write_all(9 * MiB)
    await parts_sent(bench, 1)

    with pytest.raises(StoreUnavailable):
        await writer.write(9 * MiB, b"more")
    await writer.write_all(20 * MiB, start=9 * MiB)
    assert bench.store.requests["PART"] == 1

    await writer.upload.commit(KEY, ABSENT)

    assert await bench.stored() == writer.data
    assert bench.store.requests["CREATE"] == 1


async def test_after_an_outage_only_what_is_missing_is_sent(bench: Bench) -> None:
    writer = Writer(bench)
    await writer.write_all(40 * MiB)
    await parts_sent(bench, 4)

    async def fail_once() -> None:
        del bench.store.before["COMPLETE"]
        raise StoreUnavailable(KEY)

    bench.store.before["COMPLETE"] = fail_once
    with pytest.raises(StoreUnavailable):
        await writer.upload.commit(KEY, ABSENT)
    await writer.upload.commit(KEY, ABSENT)

    assert bench.store.requests["PART"] == 5
    assert await bench.stored() == writer.data


async def test_a_denied_part_is_an_error_at_the_commit_too(bench: Bench) -> None:
    async def deny() -> None:
        raise AccessDenied(KEY)

    writer = Writer(bench)
    bench.store.before["PART"] = deny
    await writer.write_all(9 * MiB)
    await parts_sent(bench, 1)

    with pytest.raises(AccessDenied):
        await writer.upload.commit(KEY, ABSENT)

    await bench.assert_nothing_left()


async def test_an_upload_that_vanished_meanwhile_is_sent_again_whole(bench: Bench) -> None:
    writer = Writer(bench)
    await writer.write_all(20 * MiB)
    await parts_sent(bench, 2)
    await bench.other.abort_upload(KEY, bench.store.uploads[0])

    await writer.upload.commit(KEY, ABSENT)

    assert await bench.stored() == writer.data
    assert bench.store.requests["CREATE"] == 2


async def test_an_upload_lost_while_writing_is_no_error_of_the_writer(bench: Bench) -> None:
    writer = Writer(bench)

    async def vanish_once() -> None:
        del bench.store.before["PART"]
        raise NoSuchUpload(KEY)

    bench.store.before["PART"] = vanish_once
    await writer.write_all(20 * MiB)
    await parts_sent(bench, 1)
    await writer.write(20 * MiB, b"more")

    await writer.upload.commit(KEY, ABSENT)

    assert await bench.stored() == writer.data


async def test_a_change_elsewhere_since_the_first_part_is_a_conflict(bench: Bench) -> None:
    writer = Writer(bench)
    await writer.write_all(20 * MiB)
    await parts_sent(bench, 2)
    await bench.other.put(KEY, b"theirs")

    with pytest.raises(ObjectChanged):
        await writer.upload.commit(KEY, ABSENT)
    theirs = (await bench.other.head(KEY)).info
    await writer.upload.commit(KEY, theirs.etag)

    assert bench.store.requests["CREATE"] == 2  # the first would be older than theirs
    assert await bench.stored() == writer.data


async def test_a_commit_whose_answer_was_lost_is_found(bench: Bench) -> None:
    writer = Writer(bench)
    await writer.write_all(20 * MiB)
    assert await writer.upload.find_committed(KEY) is None

    async def lose() -> None:
        raise StoreUnavailable(KEY)

    bench.store.before["HEAD"] = lose
    with pytest.raises(StoreUnavailable):
        await writer.upload.commit(KEY, ABSENT)
    del bench.store.before["HEAD"]

    found = await writer.upload.find_committed(KEY)
    assert found == (await bench.other.head(KEY)).info


async def test_an_abandoned_upload_leaves_nothing(bench: Bench) -> None:
    writer = Writer(bench)
    await writer.write_all(20 * MiB)
    await parts_sent(bench, 2)
    ended = trio.Event()
    writer.upload.abandon_soon(ended.set)
    await ended.wait()

    await bench.assert_nothing_left()


# Updates


async def base_of(bench: Bench, size: int) -> tuple[ObjectInfo, bytes]:
    data = Random(size).randbytes(size)
    await bench.other.put(KEY, data)
    return (await bench.other.head(KEY)).info, data


async def test_an_update_sends_little_and_copies_the_rest(bench: Bench) -> None:
    base, data = await base_of(bench, 60 * MiB)
    writer = Writer(bench, bench.area.new(KEY, base.size))
    writer.data[:] = data
    await writer.write(30 * MiB, b"changed")

    await writer.upload.commit(KEY, base.etag, base)

    assert bench.store.requests["PART"] == 1
    assert bench.store.requests["PARTCOPY"] == 2
    assert await bench.stored() == writer.data


async def test_an_append_to_a_large_object_needs_nothing_of_it(bench: Bench) -> None:
    base, data = await base_of(bench, 20 * MiB)
    writer = Writer(bench, bench.area.new(KEY, base.size))
    writer.data[:] = data
    await writer.write(base.size, b"one line")

    await writer.upload.commit(KEY, base.etag, base)

    assert writer.staging.written.byte_count == 8
    assert await bench.stored() == writer.data


async def test_a_small_base_is_fetched_and_put_as_a_whole(bench: Bench) -> None:
    base, data = await base_of(bench, 5 * MiB)
    writer = Writer(bench, bench.area.new(KEY, base.size))
    writer.data[:] = data
    await writer.write(7, b"changed")

    await writer.upload.commit(KEY, base.etag, base)

    assert bench.store.requests == {"PUT": 1}
    assert await bench.stored() == writer.data


async def test_after_a_commit_the_next_one_sends_only_what_changed_since(bench: Bench) -> None:
    writer = Writer(bench)
    await writer.write_all(40 * MiB)
    base = await writer.upload.commit(KEY, ABSENT)
    writer.staging.rebase()
    bench.store.requests.clear()
    await writer.write(20 * MiB, b"changed")

    await writer.upload.commit(KEY, base.etag, base)

    assert bench.store.requests["PART"] == 1
    assert await bench.stored() == writer.data


async def test_an_update_written_again_after_a_failed_commit_is_sent_as_it_is_then(
    bench: Bench,
) -> None:
    """What arrived of the failed try may serve the next one, but not where bytes changed since."""
    base, data = await base_of(bench, 60 * MiB)
    writer = Writer(bench, bench.area.new(KEY, base.size))
    writer.data[:] = data
    await writer.write(50 * MiB, b"first")
    bench.store.before["COMPLETE"] = once(bench, "COMPLETE", StoreUnavailable(KEY))
    with pytest.raises(StoreUnavailable):
        await writer.upload.commit(KEY, base.etag, base)

    await writer.write(50 * MiB, b"second")
    await writer.upload.commit(KEY, base.etag, base)

    assert await bench.stored() == writer.data


def once(bench: Bench, kind: str, error: StoreError) -> Hook:
    """Fail the next request of the kind, and no other."""

    async def fail() -> None:
        del bench.store.before[kind]
        raise error

    return fail


async def test_an_append_of_many_bytes_streams(bench: Bench) -> None:
    base, data = await base_of(bench, 20 * MiB)
    writer = Writer(bench, bench.area.new(KEY, base.size), base)
    writer.data[:] = data
    await writer.write_all(30 * MiB, start=base.size)
    await parts_sent(bench, 3)
    assert bench.store.requests["COMPLETE"] == 0

    await writer.upload.commit(KEY, base.etag, base)

    assert (bench.store.requests["PART"], bench.store.requests["PARTCOPY"]) == (4, 1)
    assert writer.staging.written.byte_count == 30 * MiB
    assert await bench.stored() == writer.data
    await bench.assert_nothing_left()


async def test_an_append_to_what_was_committed_before_streams(bench: Bench) -> None:
    writer = Writer(bench)
    await writer.write_all(20 * MiB)
    base = await writer.upload.commit(KEY, ABSENT)
    writer.staging.rebase()
    bench.store.requests.clear()
    writer.upload = bench.uploader.begin(writer.staging, lambda: KEY, base=base)
    await writer.write_all(17 * MiB, start=base.size)
    await parts_sent(bench, 2)

    await writer.upload.commit(KEY, base.etag, base)

    assert (bench.store.requests["PART"], bench.store.requests["PARTCOPY"]) == (3, 1)
    assert await bench.stored() == writer.data


async def test_an_append_to_a_small_object_streams_too(bench: Bench) -> None:
    base, data = await base_of(bench, 3 * MiB)
    writer = Writer(bench, bench.area.new(KEY, base.size), base)
    writer.data[:] = data
    await writer.write_all(29 * MiB, start=base.size)
    await parts_sent(bench, 3)

    await writer.upload.commit(KEY, base.etag, base)

    assert (bench.store.requests["PART"], bench.store.requests["PARTCOPY"]) == (4, 0)
    assert await bench.stored() == writer.data


async def test_an_append_that_then_changes_what_was_there_is_stored_as_it_is(bench: Bench) -> None:
    base, data = await base_of(bench, 20 * MiB)
    writer = Writer(bench, bench.area.new(KEY, base.size), base)
    writer.data[:] = data
    await writer.write_all(20 * MiB, start=base.size)
    await parts_sent(bench, 2)
    await writer.write(7, b"changed")
    await writer.write(30 * MiB, b"again")

    await writer.upload.commit(KEY, base.etag, base)

    assert await bench.stored() == writer.data
    await bench.assert_nothing_left()


async def test_an_update_that_begins_before_the_end_does_not_stream(bench: Bench) -> None:
    """What the store can copy of it is not known before the commit."""
    base, data = await base_of(bench, 20 * MiB)
    writer = Writer(bench, bench.area.new(KEY, base.size), base)
    writer.data[:] = data
    await writer.write_all(30 * MiB, start=10 * MiB)
    await wait_all_tasks_blocked()
    assert bench.store.requests["PART"] == 0

    await writer.upload.commit(KEY, base.etag, base)

    assert await bench.stored() == writer.data


async def test_a_base_that_changed_elsewhere_is_a_conflict(bench: Bench) -> None:
    base, _ = await base_of(bench, 60 * MiB)
    writer = Writer(bench, bench.area.new(KEY, base.size))
    await writer.write(30 * MiB, b"changed")
    await bench.other.put(KEY, b"theirs")

    with pytest.raises(ObjectChanged):
        await writer.upload.commit(KEY, base.etag, base)

    assert await bench.stored() == b"theirs"
    await bench.assert_nothing_left()


async def test_a_store_without_part_copies_gets_the_file_as_a_whole(bench: Bench) -> None:
    base, data = await base_of(bench, 20 * MiB)
    writer = Writer(bench, bench.area.new(KEY, base.size))
    writer.data[:] = data
    await writer.write(7 * MiB, b"changed")

    async def refuse() -> None:
        raise StoreRefused(KEY, "NotImplemented")

    bench.store.before["PARTCOPY"] = refuse
    await writer.upload.commit(KEY, base.etag, base)

    assert await bench.stored() == writer.data
    await bench.assert_nothing_left()


async def test_equal_parts_are_sent_and_copied_on_their_grid(
    nursery: trio.Nursery, tmp_path: Path
) -> None:
    bench = make_bench(tmp_path, nursery, part_bytes=6 * MiB)
    writer = Writer(bench)
    await writer.write_all(20 * MiB)
    base = await writer.upload.commit(KEY, ABSENT)
    assert bench.store.requests["PART"] == 4
    writer.staging.rebase()
    await writer.write(7 * MiB, b"changed")

    await writer.upload.commit(KEY, base.etag, base)

    assert (bench.store.requests["PART"], bench.store.requests["PARTCOPY"]) == (5, 3)
    assert await bench.stored() == writer.data


# Everything at once


async def commit_or_not(bench: Bench, writer: Writer, base: ObjectInfo | None) -> ObjectInfo | None:
    """Commit as `fs` does; return what the file grows from afterwards."""
    try:
        info = await writer.upload.commit(KEY, base.etag if base else ABSENT, base)
    except StoreUnavailable:
        return base
    writer.staging.rebase()
    writer.upload = bench.uploader.begin(writer.staging, lambda: KEY, base=info)
    return info


async def change(writer: Writer, rng: Random) -> None:
    size = writer.staging.size
    kind = rng.choice(["write", "append", "append", "truncate"])
    if kind == "truncate":
        await writer.truncate(rng.randrange(size + 5 * MiB))
        return
    offset = size if kind == "append" else rng.randrange(size + MiB)
    length = rng.choice([1, 70_000, 2 * MiB, 9 * MiB])
    try:
        await writer.write(offset, rng.randbytes(length))
    except StoreUnavailable:  # of a part before; nothing was written
        await writer.write(offset, rng.randbytes(length))


SEEDS = [*range(12), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(12, 300))]


@pytest.mark.parametrize("seed", SEEDS)
async def test_random_changes_and_failures_end_in_what_was_written(bench: Bench, seed: int) -> None:
    rng = Random(seed)
    base: ObjectInfo | None = None
    writer = Writer(bench)
    if size := rng.choice([0, 3 * MiB, 6 * MiB, 20 * MiB]):
        base, data = await base_of(bench, size)
        writer = Writer(bench, bench.area.new(KEY, size), base)
        writer.data[:] = data
    for _ in range(25):
        if rng.random() < 0.25:
            base = await commit_or_not(bench, writer, base)
        elif rng.random() < 0.3:
            kind = rng.choice(["PART", "PART", "COMPLETE", "PARTCOPY", "CREATE", "PUT"])
            bench.store.before[kind] = once(bench, kind, StoreUnavailable(KEY))
        else:
            await change(writer, rng)
    bench.store.before.clear()
    for _ in range(2):  # a part that failed before may be answered by the first
        base = await commit_or_not(bench, writer, base)

    assert await bench.stored() == writer.data
    await writer.upload.abandon()
    await bench.assert_nothing_left()
