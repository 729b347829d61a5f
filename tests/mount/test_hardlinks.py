"""`--hardlinks copy`: programs that publish by link and unlink, on one mount and on two."""

import errno
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from tests.servers.server import Server

from .harness import Mount, MountCatalog, MountVolume
from .programs import fails_with, run, shell
from .test_races import errno_of, side_by_side
from .witness import Bucket

LINKS = "--hardlinks=copy"
GIT = "git -c user.name=n -c user.email=e@example.com -c init.defaultBranch=main"


@pytest.fixture
def pair(mount_volume: MountVolume) -> tuple[Mount, Mount]:
    first = mount_volume(LINKS)
    return first, mount_volume(LINKS, place=first.bucket)


@pytest.mark.promise("P51")
def test_a_link_is_a_copy_and_a_name_that_is_taken_is_eexist(mount_volume: MountVolume) -> None:
    mount = mount_volume(LINKS)
    old, new = mount.path / "old", mount.path / "new"
    old.write_bytes(b"bytes")

    os.link(old, new)

    assert mount.bucket.get("new") == b"bytes"
    assert (old.stat().st_nlink, new.stat().st_nlink) == (1, 1)
    assert old.stat().st_ino != new.stat().st_ino
    with fails_with(errno.EEXIST):
        os.link(old, new)
    mount.bucket.put("theirs", b"taken elsewhere")
    with fails_with(errno.EEXIST):
        os.link(old, mount.path / "theirs")
    old.write_bytes(b"changed")
    assert new.read_bytes() == b"bytes"
    with fails_with(errno.EPERM):
        os.link(mount.path, mount.path / "directory")
    with fails_with(errno.ENOENT):
        os.link(mount.path / "missing", mount.path / "x")


@pytest.mark.promise("P51")
def test_a_file_is_linked_while_it_is_open_and_not_committed(mount_volume: MountVolume) -> None:
    mount = mount_volume(LINKS)
    with (mount.path / "tmp").open("wb", buffering=0) as file:
        file.write(b"all of it")
        os.link(mount.path / "tmp", mount.path / "final")
        assert mount.bucket.get("final") == b"all of it"
    (mount.path / "tmp").unlink()
    assert mount.bucket.files() == {"final"}


@pytest.mark.promise("P51")
def test_of_two_mounts_that_link_to_one_name_one_wins(pair: tuple[Mount, Mount]) -> None:
    """64 races, 16 at a time: the loser is told EEXIST, and the store has the winner's bytes."""
    at_once = 16
    for first in range(0, 64, at_once):
        races = range(first, first + at_once)
        for race in races:
            for side, mount in enumerate(pair):
                (mount.path / f"tmp{race}-{side}").write_bytes(b"%d of race %d" % (side, race))
        barrier = threading.Barrier(len(pair) * at_once)

        def link(race: int, side: int, barrier: threading.Barrier = barrier) -> int | None:
            path = pair[side].path
            barrier.wait(10)
            return errno_of(lambda: os.link(path / f"tmp{race}-{side}", path / f"final{race}"))

        answers = side_by_side(*(partial(link, race, side) for race in races for side in (0, 1)))

        for race, *told in zip(races, answers[::2], answers[1::2], strict=True):
            assert sorted(told, key=bool) == [None, errno.EEXIST], (race, told)
            winner = b"%d of race %d" % (told.index(None), race)
            assert pair[0].bucket.get(f"final{race}") == winner
            for mount in pair:
                assert (mount.path / f"final{race}").read_bytes() == winner


def test_of_many_threads_of_two_mounts_one_wins(pair: tuple[Mount, Mount]) -> None:
    for side, mount in enumerate(pair):
        (mount.path / f"tmp{side}").write_bytes(b"side %d" % side)
    barrier = threading.Barrier(16)

    def link(number: int) -> int | None:
        side = number % 2
        path = pair[side].path
        barrier.wait(10)
        return errno_of(lambda: os.link(path / f"tmp{side}", path / "final"))

    answers = side_by_side(*[lambda number=number: link(number) for number in range(16)])

    assert sorted(answers, key=bool) == [None, *[errno.EEXIST] * 15]
    winner = answers.index(None) % 2
    assert pair[0].bucket.get("final") == b"side %d" % winner


def test_a_store_without_conditional_copies_has_one_winner_too(
    mount_volume: MountVolume, moto: Server
) -> None:
    """Small files are put and large ones completed under the condition that it does honour."""
    client = moto.client()
    client.create_bucket(Bucket="links")
    bucket = Bucket(client, "links", "")
    mount = mount_volume(LINKS, place=bucket, over=moto.environment())
    for name, size in (("empty", 0), ("small", 1000), ("large", 9 << 20)):
        data = os.urandom(size)
        (mount.path / name).write_bytes(data)
        os.link(mount.path / name, mount.path / f"{name}.linked")
        assert bucket.get(f"{name}.linked") == data
        bucket.put(f"{name}.theirs", b"theirs")
        with fails_with(errno.EEXIST):
            os.link(mount.path / name, mount.path / f"{name}.theirs")
        assert bucket.get(f"{name}.theirs") == b"theirs"


def test_a_governed_volume_has_links_too(mount_catalog: MountCatalog, governed: Bucket) -> None:
    place = mount_catalog(LINKS).path / "main/default/images"
    (place / "f").write_bytes(b"bytes")
    os.link(place / "f", place / "g")
    with fails_with(errno.EEXIST):
        os.link(place / "f", place / "g")
    assert governed.get("g") == b"bytes"
    assert governed.names() == {"f", "g"}


def test_git_publishes_its_objects_by_links(mount_volume: MountVolume, tmp_path: Path) -> None:
    mount = mount_volume(LINKS)
    shell(
        f"""{GIT} init -q repo; cd repo; echo one > f; {GIT} add .; {GIT} commit -qm first
        echo two >> f; {GIT} commit -qam second; git fsck --strict; {GIT} gc -q
        git fsck --strict; test -z "$(git status --porcelain)" """,
        cwd=mount.path,
    )
    assert mount.status()["fuse_requests"]["LINK"] > 0
    shell(f"{GIT} clone -q {mount.path}/repo back; cmp back/f {mount.path}/repo/f", cwd=tmp_path)
    assert not [name for name in mount.bucket.names() if "tmp_obj" in name]


def test_ln_and_cp_l_make_copies(mount_volume: MountVolume) -> None:
    mount = mount_volume(LINKS)
    (mount.path / "d").mkdir()
    (mount.path / "d/f").write_bytes(b"f")
    run("ln", mount.path / "d/f", mount.path / "g")
    run("cp", "-rl", mount.path / "d", mount.path / "e")
    assert (mount.bucket.get("g"), mount.bucket.get("e/f")) == (b"f", b"f")


APPEND_ROWS = """
import sys
import deltalake, pyarrow as pa
table, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for number in range(first, first + count):
    deltalake.write_deltalake(table, pa.table({"id": pa.array([number])}), mode="append")
"""


@pytest.mark.timeout(120)
def test_two_mounts_append_to_one_delta_table_and_lose_nothing(pair: tuple[Mount, Mount]) -> None:
    """README, Tables: with links that one program wins, deltalake needs no unsafe renames."""
    deltalake, pq = pytest.importorskip("deltalake"), pytest.importorskip("pyarrow.parquet")
    count = 6
    append = [sys.executable, "-c", APPEND_ROWS]
    subprocess.run([*append, str(pair[0].path / "t"), "0", "1"], check=True, timeout=60)
    writers = [
        subprocess.Popen(
            [*append, str(mount.path / "t"), str(first), str(count)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for mount, first in zip(pair, (1, 1 + count), strict=True)
    ]
    printed = [writer.communicate(timeout=90)[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], printed
    assert all(mount.status()["fuse_requests"]["LINK"] for mount in pair)

    log = pair[0].bucket.below("t/_delta_log")
    commits = {name for name in log.files() if name.endswith(".json")}
    assert commits == {f"{version:020}.json" for version in range(1 + 2 * count)}
    pair[0].remount()  # a listing may be a second old
    table = deltalake.DeltaTable(str(pair[0].path / "t"))
    parts = [pq.read_table(uri.removeprefix("file://")) for uri in table.file_uris()]
    assert sorted(number for part in parts for number in part["id"].to_pylist()) == list(
        range(1 + 2 * count)
    )
