"""Copies between trees: what arrives, what is left alone, what is refused."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from ucfuse.budget import MemoryBudget
from ucfuse.copying.copy_job import CopyJob
from ucfuse.copying.files import LocalTree
from ucfuse.copying.objects import ObjectTree
from ucfuse.copying.tally import Tally
from ucfuse.copying.trees import Tree
from ucfuse.store.api import Fetched, NotModified
from ucfuse.store.checksums import checksum_of
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import Key, MiB

LARGE = bytes(range(256)) * (20 * MiB // 256) + b"end"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def objects(store: Any, prefix: str = "tree/", *, has_paths: bool = True) -> ObjectTree:
    return ObjectTree(store, "bucket", prefix, has_paths=has_paths)


async def copy(
    source: Tree,
    target: Tree,
    *,
    deletes: bool = False,
    memory_bytes: int = 64 * MiB,
    requests: int = 8,
) -> Tally:
    budget = MemoryBudget(memory_bytes)
    has_paths = isinstance(source, LocalTree) or isinstance(target, LocalTree)
    job = CopyJob(
        source, target, budget, most_requests=requests, deletes=deletes, has_paths=has_paths
    )
    with trio.fail_after(20):
        await job.run()
    assert budget.reserved_bytes == 0
    return job.tally


async def fill(store: MemoryStore, **bodies: bytes) -> None:
    for name, body in bodies.items():
        await store.put(Key("tree/" + name.replace("__", "/")), body)


def found(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


async def keys(store: Any, prefix: str) -> dict[str, bytes]:
    page = await store.list_page(prefix, delimited=False)
    bodies = {}
    for info in page.objects:
        answer = await store.get(info.key, 0, info.size)
        assert isinstance(answer, Fetched)
        bodies[info.key.removeprefix(prefix)] = bytes(answer.data)
    return bodies


# From the store


async def test_a_tree_arrives_with_times_and_empty_directories(
    store: MemoryStore, tmp_path: Path
) -> None:
    await fill(store, a=b"1", d__b=b"22", d__e__c=b"", large=LARGE)
    await store.put(Key("tree/empty/"), b"")
    tally = await copy(objects(store), LocalTree(tmp_path / "new/there"))

    root = tmp_path / "new/there"
    assert found(root) == {"a": b"1", "d/b": b"22", "d/e/c": b"", "large": LARGE}
    assert (root / "empty").is_dir()
    assert int((root / "a").stat().st_mtime) == (await store.head(Key("tree/a"))).info.mtime_s
    assert (tally.copied_files, tally.same_files, tally.failed_count) == (4, 0, 0)
    assert tally.moved_bytes == tally.found_bytes == 3 + len(LARGE)


async def test_a_copy_that_is_repeated_moves_what_is_new_and_nothing_else(
    store: MemoryStore, tmp_path: Path
) -> None:
    await fill(store, a=b"1", b=b"2", c=b"3")
    await copy(objects(store), LocalTree(tmp_path))
    await fill(store, b=b"X", d=b"4")
    (tmp_path / "c").write_bytes(b"Y")

    tally = await copy(objects(store), LocalTree(tmp_path))

    assert found(tmp_path) == {"a": b"1", "b": b"X", "c": b"3", "d": b"4"}
    assert (tally.copied_files, tally.same_files) == (3, 1)


async def test_keys_that_no_file_can_have_are_named_and_write_nothing_elsewhere(
    store: MemoryStore, tmp_path: Path
) -> None:
    await fill(store, good=b"1")
    odd = ["../up", "..", "/abs", "a//b", "./x", "x/../../up", "n\0", "x" * 300]
    for name in odd:
        await store.put(Key("tree/" + name), b"evil")
    root = tmp_path / "deep/root"
    tally = await copy(objects(store), LocalTree(root))

    assert found(tmp_path) == {"deep/root/good": b"1"}
    assert tally.failed_count == len(odd)
    assert {trouble.name for trouble in tally.failures} == {
        f"s3://bucket/tree/{name}" for name in odd
    }


async def test_an_object_beside_a_directory_of_its_name_is_named(
    store: MemoryStore, tmp_path: Path
) -> None:
    # Between `a` and `a/` in a listing: more names than a page has.
    await fill(store, a=b"1", a__b=b"2", **{f"a-{number:04}": b"" for number in range(1200)})
    tally = await copy(objects(store), LocalTree(tmp_path))

    assert (tmp_path / "a/b").read_bytes() == b"2"
    assert [trouble.name for trouble in tally.failures] == ["s3://bucket/tree/a"]
    assert tally.copied_files == 1201


async def test_links_in_the_target_are_not_followed(store: MemoryStore, tmp_path: Path) -> None:
    await fill(store, d__f=b"1", g=b"2")
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (outside / "g").write_bytes(b"kept")
    (root / "d").symlink_to(outside)
    (root / "g").symlink_to(outside / "g")
    tally = await copy(objects(store), LocalTree(root), deletes=True)

    assert found(outside) == {"g": b"kept"}
    assert tally.failed_count == 2


async def test_a_file_in_the_way_of_a_directory_and_the_other_way_round(
    store: MemoryStore, tmp_path: Path
) -> None:
    await fill(store, d__f=b"1", g=b"2", h=b"3")
    (tmp_path / "d").write_bytes(b"file")
    (tmp_path / "g").mkdir()
    tally = await copy(objects(store), LocalTree(tmp_path))

    assert {trouble.name for trouble in tally.failures} == {
        str(tmp_path / "d"),
        str(tmp_path / "g"),
    }
    assert (tmp_path / "h").read_bytes() == b"3"
    assert (tmp_path / "d").read_bytes() == b"file"


class Damaging:
    """A store whose ranges come with one byte changed."""

    def __init__(self, store: MemoryStore, damage: Callable[[str], bool]) -> None:
        self._store = store
        self._damage = damage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, key: Key, start: int, stop: int, **more: Any) -> Fetched | NotModified:
        answer = await self._store.get(key, start, stop, **more)
        assert isinstance(answer, Fetched)
        if not self._damage(key):
            return answer
        return Fetched(answer.info, start, bytes(answer.data[:-1]) + b"?")


async def test_a_large_file_that_came_damaged_is_not_there(
    store: MemoryStore, tmp_path: Path
) -> None:
    await store.put(Key("tree/large"), LARGE, checksum=checksum_of(LARGE))
    await fill(store, small=b"1")
    tally = await copy(
        objects(Damaging(store, lambda key: key == "tree/large")), LocalTree(tmp_path)
    )
    assert found(tmp_path) == {"small": b"1"}
    assert os.listdir(tmp_path) == ["small"]
    (trouble,) = tally.failures
    assert "checksum" in trouble.reason


class Meddling:
    """A store in which somebody else does something before a request is answered."""

    def __init__(self, store: MemoryStore, **before: Callable[[], Awaitable[object]]) -> None:
        self._store = store
        self._before = before

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in self._before:
            return method

        async def meddled(*arguments: Any, **more: Any) -> Any:
            await self._before[name]()
            return await method(*arguments, **more)

        return meddled


async def test_a_local_file_that_came_to_be_meanwhile_is_left_alone(
    store: MemoryStore, tmp_path: Path
) -> None:
    await fill(store, a=b"1")

    async def write() -> None:
        (tmp_path / "a").write_bytes(b"somebody's")

    tally = await copy(objects(Meddling(store, get=write)), LocalTree(tmp_path))
    assert found(tmp_path) == {"a": b"somebody's"}
    assert tally.failed_count == 1


async def test_a_version_that_went_during_the_copy_is_not_mixed(
    store: MemoryStore, tmp_path: Path
) -> None:
    await fill(store, large=LARGE)

    async def replace() -> None:
        await fill(store, large=LARGE[::-1])

    tally = await copy(objects(Meddling(store, get=replace)), LocalTree(tmp_path))
    assert found(tmp_path) == {}
    assert tally.failed_count == 1


# To the store


async def test_local_files_become_objects_and_are_not_sent_twice(
    store: MemoryStore, tmp_path: Path
) -> None:
    (tmp_path / "d/empty").mkdir(parents=True)
    (tmp_path / "d/a").write_bytes(b"1")
    (tmp_path / "large").write_bytes(LARGE)
    tally = await copy(LocalTree(tmp_path), objects(store))
    assert await keys(store, "tree/") == {"d/a": b"1", "d/empty/": b"", "large": LARGE}
    assert tally.copied_files == 2

    os.utime(tmp_path / "d/a", (1, 1))  # times say nothing, bytes do
    (tmp_path / "large").write_bytes(LARGE[::-1])
    again = await copy(LocalTree(tmp_path), objects(store))
    assert (again.copied_files, again.same_files) == (1, 1)
    assert (await keys(store, "tree/"))["large"] == LARGE[::-1]


async def test_links_and_pipes_are_named(store: MemoryStore, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "link").symlink_to("a")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / os.fsdecode(b"bad\xff")).write_bytes(b"2")
    tally = await copy(LocalTree(tmp_path), objects(store))
    assert await keys(store, "tree/") == {"a": b"1"}
    assert tally.failed_count == 3


@pytest.mark.parametrize("body", [b"mine", LARGE])
async def test_a_commit_from_elsewhere_is_not_replaced(
    store: MemoryStore, tmp_path: Path, body: bytes
) -> None:
    (tmp_path / "new").write_bytes(body)
    (tmp_path / "old").write_bytes(body)
    await fill(store, old=b"before")

    async def commit() -> None:
        await fill(store, new=b"theirs", old=b"theirs too")

    meddling = Meddling(store, put=commit, complete_upload=commit)
    tally = await copy(LocalTree(tmp_path), objects(meddling))
    assert await keys(store, "tree/") == {"new": b"theirs", "old": b"theirs too"}
    assert tally.failed_count == 2


async def test_a_file_that_changes_while_it_is_sent_is_not_stored(
    store: MemoryStore, tmp_path: Path
) -> None:
    (tmp_path / "log").write_bytes(LARGE)

    async def write() -> None:
        with (tmp_path / "log").open("ab") as file:
            file.write(b"more")

    # One request at a time: else all parts may have been read before the file changes.
    target = objects(Meddling(store, create_upload=write))
    tally = await copy(LocalTree(tmp_path), target, requests=1)
    assert await keys(store, "tree/") == {}
    assert tally.failed_count == 1


# Between stores


async def test_a_store_copies_by_itself_and_two_stores_through_us(store: MemoryStore) -> None:
    await fill(store, a=b"1", d__b=b"2", large=LARGE)
    await copy(objects(store), objects(store, "copy/"))
    other = MemoryStore()
    await copy(objects(store), objects(other, ""))
    expected = {"a": b"1", "d/b": b"2", "large": LARGE}
    assert await keys(store, "copy/") == await keys(other, "") == expected

    again = await copy(objects(store), objects(other, ""))
    assert (again.copied_files, again.same_files) == (0, 3)


async def test_between_buckets_any_key_is_copied(store: MemoryStore) -> None:
    await fill(store, **{"a": b"1", "a//b": b"2", "a/../c": b"3"})
    other = MemoryStore()
    tally = await copy(objects(store, has_paths=False), objects(other, "", has_paths=False))
    assert await keys(other, "") == {"a": b"1", "a//b": b"2", "a/../c": b"3"}
    assert tally.failed_count == 0


# What the source lacks


async def test_without_the_option_nothing_is_removed(store: MemoryStore, tmp_path: Path) -> None:
    await fill(store, a=b"1")
    (tmp_path / "more").write_bytes(b"2")
    await copy(objects(store), LocalTree(tmp_path))
    assert set(found(tmp_path)) == {"a", "more"}


async def test_delete_removes_what_the_source_lacks(store: MemoryStore, tmp_path: Path) -> None:
    await fill(store, a=b"1", d__b=b"2")
    (tmp_path / "d").mkdir()
    (tmp_path / "gone/deep").mkdir(parents=True)
    for name in ("more", "d/more", "gone/deep/f"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path)
    tally = await copy(objects(store), LocalTree(tmp_path), deletes=True)
    assert found(tmp_path) == {"a": b"1", "d/b": b"2"}
    assert sorted(os.listdir(tmp_path)) == ["a", "d"]
    assert tally.removed == 4

    await fill(store, extra=b"x", gone__f=b"x")
    await copy(LocalTree(tmp_path), objects(store), deletes=True)
    assert set(await keys(store, "tree/")) == {"a", "d/b"}


async def test_after_a_failure_nothing_is_removed(store: MemoryStore, tmp_path: Path) -> None:
    await fill(store, a=b"1")
    await store.put(Key("tree/x//y"), b"odd")
    (tmp_path / "more").write_bytes(b"x")
    tally = await copy(objects(store), LocalTree(tmp_path), deletes=True)
    assert set(found(tmp_path)) == {"a", "more"}
    assert (tally.failed_count, tally.removed) == (1, 0)


async def test_memory_for_less_than_one_part_is_enough(store: MemoryStore, tmp_path: Path) -> None:
    await fill(store, large=LARGE, small=b"1" * MiB)
    tally = await copy(objects(store), LocalTree(tmp_path), memory_bytes=1 * MiB)
    assert tally.failed_count == 0
    assert (tmp_path / "large").read_bytes() == LARGE
