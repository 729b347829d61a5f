"""Keys that other clients made and no file system knows: what the mount shows of them.

SeaweedFS folds such keys, so these tests use moto, which keeps every key as it is.
"""

import os

import pytest

from tests.servers.server import Server

from .harness import Mount, MountVolume
from .witness import Bucket


@pytest.fixture
def odd(moto: Server, mount_volume: MountVolume, bucket: Bucket) -> Mount:
    """A mount of a bucket in that store."""
    client = moto.client()
    name = f"odd-{bucket.prefix.strip('/')}"
    client.create_bucket(Bucket=name)
    return mount_volume(place=Bucket(client, name, "p/"), over=moto.environment())


@pytest.mark.promise("P30")
def test_directory_has_the_name_where_file_and_directory_share_it(odd: Mount) -> None:
    odd.bucket.put("a", b"the file")
    odd.bucket.put("a/b", b"inside")
    odd.bucket.put("a.txt", b"sorts between them")
    assert sorted(os.listdir(odd.path)) == ["a", "a.txt", "a.ucfuse-object"]
    assert (odd.path / "a").is_dir()
    assert os.listdir(odd.path / "a") == ["b"]
    assert (odd.path / "a/b").read_bytes() == b"inside"
    assert (odd.path / "a.ucfuse-object").read_bytes() == b"the file"
    assert odd.bucket.get("a") == b"the file"


# Each breaks something somewhere: URLs, XML, shells, normal forms, the limit of a name.
ODD_NAMES = [
    " a b ", "#hash", "what?", "50%", "%2F", "a+b", "a&b", "it's", 'say "x"', "*", "[x]", "a=b",
    "tab\there", "\x01", "caf\u00e9", "cafe\u0301", "\N{GRINNING FACE}",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467", "-rf", "~", "...", ".hidden", "\\", "a;b|c>d",
    "\u00fc" * 127, "n" * 255,
]  # fmt: skip


@pytest.mark.promise("P29")
def test_every_odd_name_is_made_read_listed_renamed_and_removed(odd: Mount) -> None:
    for name in ODD_NAMES:
        (odd.path / name).write_bytes(name.encode())
        odd.bucket.put(f"theirs/{name}", name.encode())
    (odd.path / "dirs").mkdir()
    for name in ODD_NAMES:
        (odd.path / "dirs" / name).mkdir()
        (odd.path / "dirs" / name / name).write_bytes(b"inner")
    assert odd.bucket.files() == {
        *ODD_NAMES,
        *(f"theirs/{name}" for name in ODD_NAMES),
        *(f"dirs/{name}/{name}" for name in ODD_NAMES),
    }
    for directory in ("theirs", "dirs"):
        assert set(os.listdir(odd.path / directory)) == set(ODD_NAMES)
    for name in ODD_NAMES:
        assert odd.bucket.get(name) == (odd.path / "theirs" / name).read_bytes() == name.encode()
        os.rename(odd.path / name, odd.path / "theirs" / name)
        os.rename(odd.path / "dirs" / name, odd.path / name)
        assert os.listdir(odd.path / name) == [name]
        os.unlink(odd.path / name / name)
        os.rmdir(odd.path / name)
    assert odd.bucket.files() == {f"theirs/{name}" for name in ODD_NAMES}
    assert os.listdir(odd.path / "dirs") == []


@pytest.mark.promise("P29")
def test_a_name_may_break_a_line(mount_volume: MountVolume) -> None:
    """moto knows no such key, whoever sends it: this is the store in memory."""
    top = mount_volume(memory=True).path
    names = [*ODD_NAMES, "line\nbreak", "\n", "two\r\n"]
    for name in names:
        (top / name).mkdir()
        (top / name / name).write_bytes(name.encode())
    assert set(os.listdir(top)) == set(names)
    for name in names:
        os.rename(top / name / name, top / name / f"{name[:100]}-")
        assert os.listdir(top / name) == [f"{name[:100]}-"]
        assert (top / name / f"{name[:100]}-").read_bytes() == name.encode()


@pytest.mark.promise("P30")
def test_keys_that_cannot_be_names_are_skipped_and_counted(odd: Mount) -> None:
    for key in ("good", "x//y", "./z", "d/../w", "n" * 256, "d/ok"):
        odd.bucket.put(key, b"x")
    assert sorted(os.listdir(odd.path)) == ["d", "good", "x"]
    assert os.listdir(odd.path / "d") == ["ok"]
    assert os.listdir(odd.path / "x") == []
    assert odd.status()["skipped_keys"] >= 4


@pytest.mark.promise("P29")
def test_listing_order_of_the_store_does_not_hide_names(odd: Mount) -> None:
    names = ["a", "a-b", "a.b", "a0", "aa", "ä", "\N{SNAKE}", "~", "!", "a b", "a+b", "a%2Fb"]
    for name in names:
        odd.bucket.put(name, name.encode())
        odd.bucket.put(f"dir-{name}/x", b"")
    assert set(os.listdir(odd.path)) == {*names, *(f"dir-{name}" for name in names)}
    for name in names:
        assert (odd.path / name).read_bytes() == name.encode()


def test_marker_with_bytes_in_it_is_still_a_directory(odd: Mount) -> None:
    odd.bucket.put("d/", b"some tools write this")
    odd.bucket.put("d/f", b"x")
    assert os.listdir(odd.path) == ["d"]
    assert os.listdir(odd.path / "d") == ["f"]


def test_renamed_directory_is_gone_under_its_old_name(odd: Mount) -> None:
    # SeaweedFS goes on listing a prefix whose nested keys were all deleted.
    os.makedirs(odd.path / "old/sub")
    (odd.path / "old/f").write_bytes(b"f")
    (odd.path / "old/sub/g").write_bytes(b"g")
    odd.bucket.put("old/sub/elsewhere", b"e")
    os.rename(odd.path / "old", odd.path / "new")
    assert os.listdir(odd.path) == ["new"]
    assert not (odd.path / "old").exists()
    assert odd.bucket.files() == {"new/f", "new/sub/g", "new/sub/elsewhere"}


def test_file_work_on_another_store(odd: Mount) -> None:
    data = os.urandom(9 << 20)
    (odd.path / "large").write_bytes(data)
    assert odd.bucket.get("large") == data
    with open(odd.path / "large", "r+b") as file:
        file.write(b"changed")
    assert odd.bucket.get("large") == b"changed" + data[7:]
    os.rename(odd.path / "large", odd.path / "moved")
    assert odd.bucket.files() == {"moved"}
    assert (odd.path / "moved").read_bytes() == b"changed" + data[7:]
