"""Programs that people use, unchanged, on a mount; each result is checked in the store too."""

import os
import random
import sqlite3
import zipfile
from pathlib import Path

import pytest

from .harness import Volume
from .programs import run, shell
from .witness import Bucket


def make_tree(root: Path, seed: int = 3) -> dict[str, bytes]:
    """Write a small tree of files of many sizes; return names and bytes."""
    dice = random.Random(seed)
    files = {
        f"{directory}{name}": dice.randbytes(size)
        for directory in ("", "one/", "one/deep/", "two words/")
        for name, size in (("empty", 0), ("small.txt", 37), ("page.bin", 4096), ("odd", 70_001))
    }
    files["one/large.bin"] = dice.randbytes(9 << 20)
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return files


def assert_holds(bucket: Bucket, files: dict[str, bytes]) -> None:
    """Assert that the bucket has exactly these files."""
    assert bucket.files() == set(files)
    for name, data in files.items():
        assert bucket.get(name) == data, name


def test_cp_a_copies_a_tree_in_and_out(volume: Volume, tmp_path: Path) -> None:
    files = make_tree(tmp_path / "src")
    run("cp", "-a", tmp_path / "src", volume.path / "copy")
    run("diff", "-r", tmp_path / "src", volume.path / "copy")
    assert_holds(volume.bucket.below("copy"), files)
    run("cp", "-a", volume.path / "copy", tmp_path / "back")
    run("diff", "-r", tmp_path / "src", tmp_path / "back")


def test_mv_moves_in_around_and_out(volume: Volume, tmp_path: Path) -> None:
    files = make_tree(tmp_path / "src")
    run("cp", "-a", tmp_path / "src", tmp_path / "kept")
    run("mv", tmp_path / "src", volume.path / "in")
    assert_holds(volume.bucket.below("in"), files)
    run("mv", volume.path / "in", volume.path / "around")
    assert_holds(volume.bucket.below("around"), files)
    run("mv", volume.path / "around", tmp_path / "out")
    assert volume.bucket.names() == set()
    run("diff", "-r", tmp_path / "kept", tmp_path / "out")


def test_mv_n_keeps_the_existing_file(volume: Volume) -> None:
    volume.bucket.put("a", b"a")
    volume.bucket.put("b", b"b")
    run("mv", "-n", volume.path / "a", volume.path / "b", expect=None)
    assert (volume.bucket.get("a"), volume.bucket.get("b")) == (b"a", b"b")


@pytest.mark.promise("P25")
def test_rm_r_removes_a_tree_with_and_without_markers(volume: Volume) -> None:
    make_tree(volume.path / "ours")
    volume.bucket.put_all([f"theirs/{d}/{f}" for d in "abc" for f in range(30)], b"x")
    run("rm", "-r", volume.path / "ours", volume.path / "theirs")
    assert volume.bucket.names() == set()
    assert os.listdir(volume.path) == []


def test_rsync_a_copies_a_tree_and_then_only_what_changed(volume: Volume, tmp_path: Path) -> None:
    files = make_tree(tmp_path / "src")
    sync = ("rsync", "-a", "--stats", f"{tmp_path}/src/", f"{volume.path}/dst/")
    run(*sync)
    assert_holds(volume.bucket.below("dst"), files)
    again = run(*sync[:2], "--size-only", *sync[2:])
    assert "Number of regular files transferred: 0" in again
    (tmp_path / "src/odd").write_bytes(b"changed")
    (tmp_path / "src/one/small.txt").unlink()
    run(*sync[:2], "--delete", *sync[2:])
    del files["one/small.txt"]
    assert_holds(volume.bucket.below("dst"), {**files, "odd": b"changed"})


def test_tar_packs_on_and_unpacks_to_the_mount(volume: Volume, tmp_path: Path) -> None:
    files = make_tree(tmp_path / "src")
    run("tar", "-C", tmp_path / "src", "-czf", volume.path / "t.tar.gz", ".")
    (volume.path / "out").mkdir()
    run("tar", "-C", volume.path / "out", "-xpf", volume.path / "t.tar.gz")
    assert_holds(volume.bucket.below("out"), files)


def test_git_clone_commit_and_fsck(volume: Volume, tmp_path: Path) -> None:
    name = "git -c user.name=n -c user.email=e@example.com -c init.defaultBranch=main"
    shell(
        f"""{name} init -q origin; cd origin; echo one > f; mkdir d; echo two > d/g
        {name} add .; {name} commit -qm first""",
        cwd=tmp_path,
    )
    shell(
        f"""{name} clone -q {tmp_path}/origin repo; cd repo
        echo three >> f; echo new > h; {name} add .; {name} commit -qm second
        git fsck --strict; test -z "$(git status --porcelain)"; {name} gc -q; git fsck --strict""",
        cwd=volume.path,
    )
    repo = volume.bucket.below("repo")
    assert repo.get("f") == b"one\nthree\n"
    assert {"d/g", "h", ".git/HEAD"} <= repo.files()
    assert not any(name.endswith(".lock") for name in repo.names())
    shell(f"{name} clone -q {volume.path}/repo back; cmp back/f {volume.path}/repo/f", cwd=tmp_path)


def test_sqlite_keeps_its_promises(volume: Volume, tmp_path: Path) -> None:
    with sqlite3.connect(volume.path / "data.db") as db:
        db.execute("create table t (id integer primary key, text)")
        for start in range(0, 500, 100):
            with db:
                rows = ((number, "x" * 200) for number in range(start, start + 100))
                db.executemany("insert into t values (?, ?)", rows)
        try:
            with db:
                db.execute("delete from t")
                raise LookupError
        except LookupError:
            pass
        assert db.execute("select count(*) from t").fetchone() == (500,)
    db.close()
    (tmp_path / "witness.db").write_bytes(volume.bucket.get("data.db"))
    with sqlite3.connect(tmp_path / "witness.db") as copy:
        assert copy.execute("pragma integrity_check").fetchone() == ("ok",)
        assert copy.execute("select count(*) from t").fetchone() == (500,)
    copy.close()
    assert volume.bucket.files() == {"data.db"}


def test_sqlite_command_line(volume: Volume) -> None:
    database = volume.path / "c.db"
    run("sqlite3", database, "create table t(a); insert into t values (1), (2), (3);")
    assert run("sqlite3", database, "select sum(a) from t; pragma integrity_check;") == "6\nok\n"


def test_zip_is_written_in_place_and_added_to(volume: Volume, tmp_path: Path) -> None:
    path = volume.path / "z.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("one", b"1" * 10_000)
        with archive.open("streamed", "w") as member:
            member.write(b"2" * 100_000)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("added", b"3")
    (tmp_path / "witness.zip").write_bytes(volume.bucket.get("z.zip"))
    for where in (path, tmp_path / "witness.zip"):
        with zipfile.ZipFile(where) as archive:
            assert archive.testzip() is None
            assert archive.namelist() == ["one", "streamed", "added"]


def test_dd_appends_and_overwrites_in_place(volume: Volume) -> None:
    volume.bucket.put("f", b"0123456789")
    path = volume.path / "f"
    run("dd", f"of={path}", "oflag=append", "conv=notrunc", "status=none", stdin=b"AB")
    assert volume.bucket.get("f") == b"0123456789AB"
    run("dd", f"of={path}", "bs=1", "seek=2", "conv=notrunc", "status=none", stdin=b"xy")
    assert volume.bucket.get("f") == b"01xy456789AB"
    run("dd", f"of={path}", "bs=1M", "conv=fsync", "status=none", stdin=b"z" * (3 << 20))
    assert volume.bucket.get("f") == b"z" * (3 << 20)


def copy_in_parallel(source: Path, target: Path) -> None:
    # Two `cp --parents` that make the same directory fail on every file system: it is there first.
    for directory in source.iterdir():
        (target / directory.name).mkdir()
    script = f"find . -type f -print0 | xargs -0 -P 256 -I {{}} cp --parents {{}} {target}"
    shell(script, cwd=source)


def test_256_parallel_copies_out_of_the_mount(volume: Volume, tmp_path: Path) -> None:
    expected = {f"{n % 7}/{n:03d}": b"%03d" % n * 1000 for n in range(500)}
    for name, data in expected.items():
        volume.bucket.put(f"in/{name}", data)
    copy_in_parallel(volume.path / "in", tmp_path)
    copied = {str(p.relative_to(tmp_path)): p for p in tmp_path.rglob("*") if p.is_file()}
    assert set(copied) == set(expected)
    assert all(copied[name].read_bytes() == data for name, data in expected.items())


def test_256_parallel_copies_into_the_mount(volume: Volume, tmp_path: Path) -> None:
    expected = {f"{n % 7}/{n:03d}": b"%03d" % n * 1000 for n in range(500)}
    for name, data in expected.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    copy_in_parallel(tmp_path, volume.path)
    assert volume.bucket.files() == set(expected)
    for name in list(expected)[::50]:
        assert volume.bucket.get(name) == expected[name]


def test_shell_redirections_write_and_append(volume: Volume) -> None:
    shell("echo one > f; echo two >> f; { echo a; /bin/echo b; echo c; } > g", cwd=volume.path)
    assert volume.bucket.get("f") == b"one\ntwo\n"
    assert volume.bucket.get("g") == b"a\nb\nc\n"
    assert shell("sed -i s/one/1/ f; sort f | paste -sd+", cwd=volume.path) == "1+two\n"
    assert volume.bucket.files() == {"f", "g"}


@pytest.mark.promise("P43")
def test_the_bucket_has_the_files_and_nothing_else(volume: Volume) -> None:
    """Other tools find each file under its own key, with its bytes, and no trace of the mount."""
    make_tree(volume.path / "tree")
    run("cp", "-a", volume.path / "tree", volume.path / "copy")
    large = os.urandom(9 << 20)
    (volume.path / "large").write_bytes(large)
    os.rename(volume.path / "large", volume.path / "moved")
    files = {
        str(path.relative_to(volume.path)): path.read_bytes()
        for path in volume.path.rglob("*")
        if path.is_file()
    }
    assert files["moved"] == large
    assert {name: volume.bucket.get(name) for name in volume.bucket.files()} == files
    markers = {
        f"{path.relative_to(volume.path)}/" for path in volume.path.rglob("*") if path.is_dir()
    }
    assert volume.bucket.names() - volume.bucket.files() == markers
    for name in files:
        head = volume.bucket.head(name)
        assert head is not None
        assert head["Metadata"] == {}, name
