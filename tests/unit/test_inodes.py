"""The inode table: numbers, references, and what goes when nobody needs it."""

import pytest

from ucfuse.errors import IsADirectory, NotADirectory, StaleName
from ucfuse.names import inodes
from ucfuse.names.inodes import (
    ROOT_INODE,
    Directory,
    Fate,
    File,
    InodeTable,
    Node,
    files_below,
    key_of,
)
from ucfuse.volume import ETag, InodeNo, Key, ObjectInfo


@pytest.fixture
def table() -> InodeTable:
    return InodeTable()


def _file(table: InodeTable, parent: Directory, name: str, *, is_new: bool = False) -> File:
    info = None if is_new else ObjectInfo(Key(name), 1, ETag('"1"'), 0)
    return table.add_file(parent, name, info, name)


def _forgotten(table: InodeTable, node: Node) -> InodeNo:
    node.lookups = 1
    assert table.forget(node.number, 1)[0] is node
    return node.number


def test_numbers_grow_in_the_order_in_which_names_come_up(table: InodeTable) -> None:
    numbers = []
    for index in range(6):
        node = _file(table, table.root, f"{index}")
        numbers.append(node.number)
        numbers.append(table.add_directory(table.root, f"d{index}").number)
        if index % 2:
            _forgotten(table, node)

    assert numbers == sorted(set(numbers))
    assert ROOT_INODE not in numbers


def test_what_was_forgotten_comes_back_under_its_number(table: InodeTable) -> None:
    for _ in range(3):
        directory = table.add_directory(table.root, "d")
        file = _file(table, directory, "x")
        numbers = directory.number, file.number
        _forgotten(table, file)
        assert _file(table, directory, "x").number == numbers[1]
        _forgotten(table, directory)  # and what is below it
        assert table.add_directory(table.root, "d").number == numbers[0]
        assert _file(table, directory, "x").number == numbers[1]
        _forgotten(table, table.get(numbers[0]))


def test_another_version_or_name_has_another_number(table: InodeTable) -> None:
    old = _file(table, table.root, "x")
    new = table.add_file(table.root, "x", ObjectInfo(Key("x"), 1, ETag('"2"'), 0), "x")
    again = _file(table, table.root, "x")  # the old version is open, and back in the store
    elsewhere = _file(table, table.root, "y")
    assert len({old.number, new.number, again.number, elsewhere.number}) == 4


def test_files_that_are_created_here_never_share_a_number(table: InodeTable) -> None:
    numbers = set()
    for _ in range(10):
        file = _file(table, table.root, "x", is_new=True)
        file.version = ObjectInfo(Key("x"), 1, ETag('"1"'), 0)
        numbers.add(_forgotten(table, file))
    assert len(numbers) == 10


def test_a_number_that_has_shown_other_bytes_is_not_given_again(table: InodeTable) -> None:
    numbers = set()
    for count in range(1, 10):
        file = _file(table, table.root, "x")
        file.version = ObjectInfo(Key("x"), 1, ETag(f'"changed {count}"'), 0)
        numbers.add(_forgotten(table, file))
        assert len(numbers) == count


def test_only_so_many_numbers_are_remembered(
    table: InodeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inodes, "MOST_REMEMBERED", 2)
    numbers = [_forgotten(table, _file(table, table.root, name)) for name in "abc"]
    again = [_file(table, table.root, name).number for name in "abc"]
    assert (again[0] in numbers, again[1:]) == (False, numbers[1:])


def test_what_a_number_is_must_be_what_is_asked_for(table: InodeTable) -> None:
    file, directory = _file(table, table.root, "f"), table.add_directory(table.root, "d")

    assert table.file(file.number) is file
    assert table.directory(directory.number) is directory
    with pytest.raises(IsADirectory):
        table.file(directory.number)
    with pytest.raises(NotADirectory):
        table.directory(file.number)
    with pytest.raises(StaleName):
        table.get(InodeNo(99))


def test_an_inode_goes_with_its_last_reference(table: InodeTable) -> None:
    file = _file(table, table.root, "x")
    file.lookups = 3

    assert table.forget(file.number, 2) == []
    assert table.get(file.number) is file
    assert table.forget(file.number, 1) == [file]
    assert table.root.children == {}
    with pytest.raises(StaleName):
        table.get(file.number)
    assert table.forget(file.number, 1) == []


@pytest.mark.parametrize("reason", ["pin", "new", "bound"])
def test_an_inode_stays_while_somebody_needs_it(table: InodeTable, reason: str) -> None:
    file = _file(table, table.root, "x", is_new=reason == "new")
    file.lookups = 1
    file.pins = int(reason == "pin")
    file.bound = int(reason == "bound")

    assert table.forget(file.number, 1) == []
    assert table.root.children == {"x": file}


def test_an_uncommitted_inode_without_a_name_needs_a_pin_to_stay(table: InodeTable) -> None:
    file = _file(table, table.root, "x", is_new=True)
    file.lookups, file.fate = 1, Fate.UNLINKED

    assert table.forget(file.number, 1) == [file]


def test_a_directory_stays_for_what_is_below_it(table: InodeTable) -> None:
    directory = table.add_directory(table.root, "d")
    sub = table.add_directory(directory, "sub")
    file = _file(table, sub, "x")
    directory.lookups = sub.lookups = file.lookups = 1

    assert table.forget(directory.number, 1) == []
    assert table.forget(sub.number, 1) == []
    assert set(table.forget(file.number, 1)) == {file}
    assert set(table.drop_unused(directory)) == {directory, sub}
    assert len(table) == 1


def test_a_directory_that_was_kept_stays_until_it_is_removed(table: InodeTable) -> None:
    directory = table.add_directory(table.root, "d")
    directory.kept, directory.lookups = True, 1

    assert table.forget(directory.number, 1) == []
    directory.fate = Fate.UNLINKED
    assert table.drop_unused(directory) == [directory]


def test_a_directory_is_here_by_what_is_here_below_it(table: InodeTable) -> None:
    directory = table.add_directory(table.root, "d")
    sub = table.add_directory(directory, "sub")
    assert not directory.is_local

    file = _file(table, sub, "x", is_new=True)

    assert directory.is_local
    assert not directory.stays
    file.version = ObjectInfo(Key("d/sub/x"), 1, ETag('"1"'), 0)
    assert not directory.is_local


def test_dropping_a_name_makes_the_listing_incomplete(table: InodeTable) -> None:
    directory = table.add_directory(table.root, "d")
    file = _file(table, directory, "x")
    file.lookups, directory.lookups, directory.listed_at = 1, 1, 5.0

    table.forget(file.number, 1)

    assert directory.listed_at == float("-inf")


def test_an_old_inode_that_goes_leaves_the_new_one_its_name(table: InodeTable) -> None:
    old = _file(table, table.root, "x")
    old.lookups, old.fate = 1, Fate.SUPERSEDED
    new = _file(table, table.root, "x")

    assert table.forget(old.number, 1) == [old]
    assert table.root.children == {"x": new}


def test_the_root_is_never_forgotten(table: InodeTable) -> None:
    assert table.forget(ROOT_INODE, 100) == []
    assert table.get(ROOT_INODE) is table.root


def test_keys_follow_the_tree_and_the_prefix(table: InodeTable) -> None:
    directory = table.add_directory(table.root, "d")
    sub = table.add_directory(directory, "sub")
    file = _file(table, sub, "x")
    beside = table.add_file(table.root, "d.beside", None, "d")

    assert key_of("", table.root) == ""
    assert key_of("p/", table.root) == "p/"
    assert key_of("p/", sub) == "p/d/sub/"
    assert key_of("p/", file) == "p/d/sub/x"
    assert key_of("p/", beside) == "p/d"
    assert file.path == "d/sub/x"
    assert set(files_below(table.root)) == {file, beside}
    assert list(files_below(file)) == [file]
