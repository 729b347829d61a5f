"""The superblock: what an answer of the store does to the names that are known."""

from contextlib import suppress

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.fs.stores import ScriptedStore
from ucfuse.errors import NotFound, StoreUnavailable
from ucfuse.metrics import Metrics
from ucfuse.names.inodes import Directory, Fate, File
from ucfuse.names.lookups import Lookups, _before
from ucfuse.names.rules import BESIDE_DIRECTORY_SUFFIX
from ucfuse.names.superblock import Superblock
from ucfuse.store.api import ListPage
from ucfuse.store.memory import MemoryStore
from ucfuse.store.metered import MeteredStore
from ucfuse.volume import ETag, Key, ObjectInfo

pytestmark = pytest.mark.timeout(20)

PREFIX = "p/"


@pytest.fixture
def names(metrics: Metrics) -> Superblock:
    return Superblock(PREFIX, 1.0, metrics)


@pytest.fixture
async def lookups(
    names: Superblock, store: ScriptedStore, metrics: Metrics, nursery: trio.Nursery
) -> Lookups:
    return Lookups(names, MeteredStore(store, metrics), nursery)


def _info(name: str, etag: str = "1", mtime_s: int | None = 100) -> ObjectInfo:
    return ObjectInfo(Key(PREFIX + name), 10, ETag(f'"{etag}"'), mtime_s)


def _page(*keys: str, more: bool = False) -> ListPage:
    """A page of the root: keys that end in `/` are directories."""
    objects = [_info(key) for key in keys if not key.endswith("/")]
    prefixes = [PREFIX + key for key in keys if key.endswith("/")]
    return ListPage(objects, prefixes, "more" if more else None)


def _observed(names: Superblock, name: str, etag: str = "1") -> File:
    node = names.observe(names.inodes.root, name, _info(name, etag), False, trio.current_time())
    assert isinstance(node, File)
    return node


async def test_the_same_version_keeps_the_inode_and_another_gets_a_new_one(
    names: Superblock,
) -> None:
    first = _observed(names, "x")
    first.lookups = 1

    assert _observed(names, "x") is first
    second = _observed(names, "x", "2")

    assert second is not first
    assert (first.fate, second.fate) == (Fate.SUPERSEDED, Fate.NAMED)
    assert names.known(names.inodes.root, "x") is second
    assert first.version is not None
    assert first.version.etag == '"1"'


async def test_a_newer_last_modified_of_the_same_version_is_shown(names: Superblock) -> None:
    file = _observed(names, "x")

    names.observe(names.inodes.root, "x", _info("x", mtime_s=200), False, trio.current_time())

    assert file.version is not None
    assert file.version.mtime_s == 200


async def test_an_older_answer_does_not_undo_a_younger_one(names: Superblock) -> None:
    began = trio.current_time()
    younger = _observed(names, "x", "2")

    names.observe(names.inodes.root, "x", _info("x", "1"), False, began)
    names.observe(names.inodes.root, "x", None, False, began)

    assert names.known(names.inodes.root, "x") is younger


async def test_what_is_bound_is_changed_by_no_answer(names: Superblock) -> None:
    file = _observed(names, "x")
    file.bound = 1
    root = names.inodes.root

    for info, directory in ((_info("x", "2"), False), (None, False), (None, True)):
        names.observe(root, "x", info, directory, trio.current_time())
    names.observe_page(root, _page("x/"), trio.current_time())
    names.finish_listing(root, {}, trio.current_time())
    names.observe_missing(file, trio.current_time())

    assert names.known(root, "x") is file
    assert file.has_name


async def test_an_answer_from_before_a_local_change_is_not_applied(names: Superblock) -> None:
    began = trio.current_time()
    root = names.inodes.root
    removed, moved = _observed(names, "removed"), _observed(names, "moved")
    created = names.created(root, "created", None)
    names.committed(created, _info("created", "9"), trio.current_time())
    names.removed(removed)
    names.renamed(moved, root, "there")
    made = names.made_directory(root, "made")
    made.kept = False

    names.observe_page(root, _page("created", "moved", "removed"), began)
    names.finish_listing(root, {"created": None, "moved": None, "removed": None}, began)
    names.observe_missing(created, began)
    names.observe(root, "made", None, False, began)

    assert root.children == {"created": created, "there": moved, "made": made}
    assert created.version is not None
    assert created.version.etag == '"9"'


async def test_an_answer_from_after_a_local_change_is_applied(names: Superblock) -> None:
    root = names.inodes.root
    names.removed(_observed(names, "x"))

    again = _observed(names, "x", "2")

    assert names.known(root, "x") is again


async def test_a_complete_listing_takes_names_away_and_a_page_never(names: Superblock) -> None:
    root = names.inodes.root
    for name in ("a", "b", "c"):
        _observed(names, name)

    names.observe_page(root, _page("a", more=True), trio.current_time())
    assert set(root.children) == {"a", "b", "c"}

    names.finish_listing(root, {"a": None}, trio.current_time())
    assert set(root.children) == {"a"}


async def test_a_name_seen_after_a_listing_began_stays_at_its_end(names: Superblock) -> None:
    began = trio.current_time()
    younger = _observed(names, "x")

    names.finish_listing(names.inodes.root, {}, began)

    assert names.known(names.inodes.root, "x") is younger


async def test_a_directory_that_vanished_takes_what_is_known_below_it(names: Superblock) -> None:
    root = names.inodes.root
    directory = names.observe(root, "d", None, True, trio.current_time())
    assert isinstance(directory, Directory)
    file = names.observe(directory, "x", _info("d/x"), False, trio.current_time())
    assert isinstance(file, File)
    file.pins = 1

    names.observe(root, "d", None, False, trio.current_time())

    assert root.children == {}
    assert file.fate is Fate.SUPERSEDED


async def test_a_file_beside_a_directory_has_the_other_name_in_every_answer(
    names: Superblock,
) -> None:
    root, beside = names.inodes.root, "a" + BESIDE_DIRECTORY_SUFFIX

    assert set(names.observe_page(root, _page("a", "a/"), trio.current_time())) == {beside, "a"}
    file = root.children[beside]
    assert names.key(file) == PREFIX + "a"
    assert isinstance(root.children["a"], Directory)

    names.observe(root, "a", _info("a"), True, trio.current_time())
    assert root.children[beside] is file


async def test_a_file_beside_a_directory_is_skipped_if_no_name_is_left_for_it(
    names: Superblock, metrics: Metrics
) -> None:
    name = "n" * 250

    shown = names.observe_page(names.inodes.root, _page(name, name + "/"), trio.current_time())

    assert set(shown) == {name}
    assert isinstance(names.inodes.root.children[name], Directory)
    assert metrics.skipped_keys == 1


async def test_a_directory_told_by_a_later_page_takes_the_name(names: Superblock) -> None:
    root = names.inodes.root
    names.observe_page(root, _page("a", more=True), trio.current_time())
    names.observe_page(root, _page("a/"), trio.current_time())
    assert isinstance(root.children["a"], Directory)

    shown = names.observe_page(root, _page("a", more=True), trio.current_time())

    assert set(shown) == {"a" + BESIDE_DIRECTORY_SUFFIX}
    assert isinstance(root.children["a"], Directory)


async def test_keys_that_cannot_be_names_are_counted(names: Superblock, metrics: Metrics) -> None:
    shown = names.observe_page(
        names.inodes.root,
        _page("", ".", "..", "/", "./", "a\0b", "n" * 256, "ok"),
        trio.current_time(),
    )

    assert set(shown) == {"ok"}
    assert metrics.skipped_keys == 6  # "" is the directory's own marker


async def test_memory_of_local_changes_does_not_grow_for_ever(
    names: Superblock, clock: MockClock
) -> None:
    root = names.inodes.root
    for index in range(100):
        names.removed(_observed(names, f"f{index}"))
    assert len(root.changed_names) == 100

    clock.jump(1000)
    names.removed(_observed(names, "x"))

    assert set(root.changed_names) == {"x"}


async def test_a_renamed_directory_takes_its_children_and_protects_them(
    names: Superblock,
) -> None:
    root = names.inodes.root
    directory = names.observe(root, "d", None, True, trio.current_time())
    assert isinstance(directory, Directory)
    file = names.observe(directory, "x", _info("d/x"), False, trio.current_time())
    assert isinstance(file, File)
    began = trio.current_time()

    names.renamed(directory, root, "e")
    names.observe_missing(file, began)

    assert names.key(file) == PREFIX + "e/x"
    assert file.has_name


async def test_a_failed_request_changes_nothing(
    names: Superblock, lookups: Lookups, store: ScriptedStore, clock: MockClock
) -> None:
    file = _observed(names, "x")
    clock.jump(2)
    store.fail("LIST", StoreUnavailable("x"))
    with pytest.raises(StoreUnavailable):
        await lookups.find(names.inodes.root, "x")

    assert names.known(names.inodes.root, "x") is file


@pytest.mark.parametrize("siblings", [0, 3, 30])
@pytest.mark.parametrize("kind", ["file", "directory", "both", "neither"])
async def test_a_name_is_told_from_those_that_go_on_after_it(
    names: Superblock,
    lookups: Lookups,
    memory: MemoryStore,
    metrics: Metrics,
    kind: str,
    siblings: int,
) -> None:
    """`model-1` and `model.1` sort between `model` and what lies below `model/`."""
    for number in range(siblings):
        await memory.put(Key(f"{PREFIX}model-{number}"), b"sibling")
        await memory.put(Key(f"{PREFIX}model2-{number}"), b"sibling")
    if kind in ("file", "both"):
        await memory.put(Key(f"{PREFIX}model"), b"file")
    if kind in ("directory", "both"):
        await memory.put(Key(f"{PREFIX}model/part"), b"below")
    root = names.inodes.root
    if kind == "neither":
        with pytest.raises(NotFound):
            await lookups.find(root, "model")
    else:
        node = await lookups.find(root, "model")
        assert isinstance(node, File if kind == "file" else Directory)
    assert metrics.store_requests["LIST"] == (2 if siblings == 30 else 1)


async def test_names_that_expire_together_are_renewed_by_one_page(
    names: Superblock,
    lookups: Lookups,
    memory: MemoryStore,
    store: ScriptedStore,
    metrics: Metrics,
    clock: MockClock,
) -> None:
    root = names.inodes.root
    keys = [f"f{index:02d}" for index in range(20)]
    for key in keys:
        await memory.put(Key(PREFIX + key), b"1")
    page = await memory.list_page(PREFIX, delimited=True)
    names.finish_listing(
        root, names.observe_page(root, page, trio.current_time()), trio.current_time()
    )
    clock.jump(2)

    async with store.hold("LIST").met_by(lookups.find, root, keys[0]) as nursery:
        for key in keys[1:]:
            nursery.start_soon(lookups.find, root, key)
        await wait_all_tasks_blocked()

    assert metrics.store_requests["LIST"] == 1
    assert metrics.store_requests["HEAD"] == 0


async def test_a_page_that_fails_fails_nobody_who_only_waited_for_it(
    names: Superblock, lookups: Lookups, memory: MemoryStore, store: ScriptedStore, clock: MockClock
) -> None:
    root = names.inodes.root
    for key in ("a", "b"):
        await memory.put(Key(PREFIX + key), b"1")
    page = await memory.list_page(PREFIX, delimited=True)
    names.finish_listing(
        root, names.observe_page(root, page, trio.current_time()), trio.current_time()
    )
    clock.jump(2)
    gate = store.hold("LIST")
    found: list[str] = []

    async def begin() -> None:
        with suppress(StoreUnavailable):
            await lookups.find(root, "a")

    async def find() -> None:
        found.append((await lookups.find(root, "b")).name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(begin)
        await gate.reached.wait()
        nursery.start_soon(find)
        await wait_all_tasks_blocked()
        gate.fail(StoreUnavailable("p/"))

    assert found == ["b"]


async def test_a_name_below_a_directory_that_is_renamed_meanwhile_is_asked_for_again(
    names: Superblock, lookups: Lookups, memory: MemoryStore, store: ScriptedStore
) -> None:
    root = names.inodes.root
    directory = names.observe(root, "d", None, True, trio.current_time())
    assert isinstance(directory, Directory)
    await memory.put(Key(PREFIX + "e/x"), b"1")
    found: list[str] = []

    async def find() -> None:
        found.append(names.key(await lookups.find(directory, "x")))

    async with store.hold("LIST", answered=True).met_by(find):
        names.renamed(directory, root, "e")

    assert found == [PREFIX + "e/x"]


async def test_an_unknown_name_is_not_found(names: Superblock, lookups: Lookups) -> None:
    with pytest.raises(NotFound):
        await lookups.find(names.inodes.root, "none")


name_texts = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="/\0"), min_size=1, max_size=8
)


@given(name=name_texts, other=name_texts)
def test_a_page_from_just_before_a_name_begins_with_it(name: str, other: str) -> None:
    before = _before(name)

    assert before < name
    before.encode()
    if other < name and not (other > before):
        assert other <= before
    assert not before < other < name or other.startswith(before)
