"""Many volumes in one mount: one daemon, several stores."""

import errno
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.servers.server import Server

from .faultproxy import FaultProxy, Link
from .harness import Mount, MountVolume, is_mounted, ucfuse
from .programs import assert_refuses_changes, eventually, fails_with, shell
from .witness import Bucket


def table(name: str, source: str, *more: str) -> str:
    return "\n".join([f'[volumes."{name}"]', f'source = "{source}"', *more, ""])


@pytest.fixture
def volumes(mount_volume: MountVolume, bucket: Bucket) -> Mount:
    """Three volumes of one bucket, one of them read-only."""
    bucket.below("frozen").put("f", b"frozen")
    text = table("main.default.images", bucket.below("images").source)
    text += table("main.default.text", bucket.below("text").source)
    text += table("other.default.frozen", bucket.below("frozen").source, "read_only = true")
    return mount_volume(volumes=text)


def test_programs_find_volumes_below_catalogs_and_schemas(volumes: Mount, bucket: Bucket) -> None:
    """README, Many volumes: /Volumes/CATALOG/SCHEMA/VOLUME."""
    top = volumes.path
    assert sorted(os.listdir(top)) == ["main", "other"]
    assert sorted(os.listdir(top / "main/default")) == ["images", "text"]
    (top / "main/default/images/d").mkdir()
    (top / "main/default/images/d/f").write_bytes(b"image")
    shutil.copy(top / "main/default/images/d/f", top / "main/default/text/g")

    assert bucket.below("images").get("d/f") == b"image"
    assert bucket.below("text").get("g") == b"image"
    found = shell(f"find {top} -type f | sort").split()
    assert found == [
        f"{top}/main/default/images/d/f",
        f"{top}/main/default/text/g",
        f"{top}/other/default/frozen/f",
    ]


@pytest.mark.promise("P35")
def test_catalogs_and_schemas_refuse_changes_with_eopnotsupp(volumes: Mount) -> None:
    """README, Many volumes: what is above a volume cannot be changed."""
    for place in (volumes.path, volumes.path / "main", volumes.path / "main/default"):
        with fails_with(errno.EOPNOTSUPP):
            (place / "new").mkdir()
        with fails_with(errno.EOPNOTSUPP):
            (place / "new").write_bytes(b"")
        with fails_with(errno.EOPNOTSUPP):
            (place / "new").symlink_to("main")
        with fails_with(errno.EOPNOTSUPP):
            place.chmod(0o700)
        assert not os.access(place, os.W_OK)
        assert place.stat().st_mode & 0o222 == 0
    with fails_with(errno.EOPNOTSUPP):
        (volumes.path / "main/default/text").rmdir()
    with fails_with(errno.EOPNOTSUPP):
        (volumes.path / "main/default/text").rename(volumes.path / "main/default/t")
    os.makedirs(volumes.path / "main/default/text/a/b", exist_ok=True)  # as mkdir -p does
    assert sorted(os.listdir(volumes.path)) == ["main", "other"]


@pytest.mark.promise("P26")
def test_a_rename_to_another_volume_is_exdev_and_mv_copies(volumes: Mount, bucket: Bucket) -> None:
    """README, Many volumes: rename across volumes."""
    images, text = volumes.path / "main/default/images", volumes.path / "main/default/text"
    (images / "f").write_bytes(b"moves")

    with fails_with(errno.EXDEV):
        os.rename(images / "f", text / "f")
    shell(f"mv {images}/f {text}/f")

    assert bucket.below("text").get("f") == b"moves"
    assert not (images / "f").exists()


@pytest.mark.promise("P34")
def test_a_read_only_volume_beside_others_is_erofs(volumes: Mount) -> None:
    """README, Many volumes: `read_only`."""
    frozen = volumes.path / "other/default/frozen"
    assert (frozen / "f").read_bytes() == b"frozen"
    assert_refuses_changes(frozen, errno.EROFS)


def test_volumes_have_endpoints_and_credentials_of_their_own(
    mount_volume: MountVolume, bucket: Bucket, scratch: Path, server: Server, moto: Server
) -> None:
    """README, Many volumes: each has its own `endpoint_url` and `profile`."""
    moto.client().create_bucket(Bucket="elsewhere")
    profiles = scratch / "profiles"
    profiles.write_text(
        "".join(
            f"[{each.name}]\naws_access_key_id={each.access_key}\n"
            f"aws_secret_access_key={each.secret_key}\n"
            for each in (server, moto)
        )
    )
    text = "".join(
        table(name, source, f'endpoint_url = "{each.endpoint_url}"', f'profile = "{each.name}"')
        for name, source, each in (
            ("main.default.here", bucket.source, server),
            ("main.default.there", "s3://elsewhere", moto),
        )
    )
    mount = mount_volume(
        volumes=text,
        over={
            "AWS_SHARED_CREDENTIALS_FILE": str(profiles),
            # Of nobody: a volume with a profile must not use them.
            "AWS_ACCESS_KEY_ID": "wrong",
            "AWS_SECRET_ACCESS_KEY": "wrong",
            "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        },
    )

    for name in ("here", "there"):
        (mount.path / f"main/default/{name}/f").write_text(name)

    assert bucket.get("f") == b"here"
    answer = moto.client().get_object(Bucket="elsewhere", Key="f")
    assert answer["Body"].read() == b"there"
    status = mount.status()
    assert [volume["name"] for volume in status["volumes"]] == [
        "main.default.here",
        "main.default.there",
    ]
    assert [volume["endpoint_url"] for volume in status["volumes"]] == [
        server.endpoint_url,
        moto.endpoint_url,
    ]
    # 1 each asks whether the store honours conditions.
    assert [volume["store_requests"]["PUT"] for volume in status["volumes"]] == [2, 2]
    assert status["store_requests"]["PUT"] == 4


def test_what_a_crash_left_is_kept_of_every_volume(volumes: Mount, bucket: Bucket) -> None:
    """README, After a crash: a file that was still being written is kept."""
    places = [volumes.path / "main/default/images/f", volumes.path / "main/default/text/f"]
    descriptors = [os.open(place, os.O_WRONLY | os.O_CREAT) for place in places]
    for descriptor in descriptors:
        os.write(descriptor, b"unfinished")
    volumes.kill()
    for descriptor in descriptors:
        with suppress(OSError):  # ENOTCONN
            os.close(descriptor)

    volumes.start()

    done = ucfuse(
        *("recover", "--state-dir", volumes.state_dir, "list"), environment=volumes.environment
    )
    assert bucket.below("images").source + "f" in done.stdout
    assert bucket.below("text").source + "f" in done.stdout
    assert volumes.status()["kept"] == 2


BAD_FILES = {
    "unknown key": table("a.b.c", "memory:", 'endpoint = "x"'),
    "duplicate": table("a.b.c", "memory:") + table("a.b.c", "memory:"),
    "bad name": table("a.b", "memory:"),
    "not TOML": "[[[",
    "missing bucket": table("a.b.c", "memory:") + table("a.b.no", "s3://no-such-bucket-here"),
    "unreachable": table("a.b.no", "s3://mounts", 'endpoint_url = "http://127.0.0.1:9"'),
    "no such profile": table("a.b.no", "s3://mounts", 'profile = "none-such"'),
}


@pytest.mark.parametrize("mistake", BAD_FILES)
def test_a_mistake_in_volumes_toml_is_one_line_and_mounts_nothing(
    scratch: Path, environment: dict[str, str], bucket: Bucket, mistake: str
) -> None:
    """README, When something goes wrong: nothing is mounted by half."""
    work = scratch / f"bad-{bucket.prefix.strip('/')}"
    path = work / "mnt"
    path.mkdir(parents=True)
    (work / "volumes.toml").write_text(BAD_FILES[mistake])

    done = ucfuse("mount", "--volumes", work / "volumes.toml", path, environment=environment)

    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "Traceback" not in done.stderr
    expected = "a.b.no" if "a.b.no" in BAD_FILES[mistake] else "volumes.toml: "
    assert expected in done.stderr
    assert not is_mounted(path)
    assert str(path) not in ucfuse("status", environment=environment).stdout


@pytest.fixture
def link(server: Server) -> Iterator[FaultProxy]:
    """A link to the store of one of the volumes."""
    with FaultProxy(server.address) as proxy:
        yield proxy


@pytest.mark.promise("P44")
@pytest.mark.parametrize("state", [Link.STALLS, Link.REFUSES])
def test_a_volume_whose_store_is_away_slows_no_other_down_and_comes_back(
    mount_volume: MountVolume, bucket: Bucket, link: FaultProxy, state: Link
) -> None:
    """README, Many volumes: a store without any answer fails at once, and alone."""
    far, near = bucket.below("far"), bucket.below("near")
    far.put("f", b"far")
    far.put("large", b"x" * (32 << 20))
    near.put_all((f"f{number}" for number in range(30)), b"near")
    url = f'endpoint_url = "{link.url}"'
    mount = mount_volume(
        *("--read-timeout=5s", "--metadata-timeout=5s", "--memory-limit=16MiB"),
        volumes=table("main.default.far", far.source, url)
        + table("main.default.near", near.source),
    )
    there, here = mount.path / "main/default/far", mount.path / "main/default/near"
    assert (there / "f").read_bytes() == b"far"
    large = os.open(there / "large", os.O_RDONLY)
    os.pread(large, 1, 0)
    link.become(state)
    waiting = [
        threading.Thread(target=fails_to_read, args=(large, number << 20), daemon=True)
        for number in range(4, 32, 4)
    ]
    for thread in waiting:
        thread.start()

    for number in range(30):
        assert (here / f"f{number}").read_bytes() == b"near"
    (here / "new").write_bytes(b"new")
    assert any(thread.is_alive() for thread in waiting)  # none of these was waited for
    eventually("the store to be away", lambda: mount.status()["volumes"][0]["is_away"])
    began = time.monotonic()
    for _ in range(10):
        with fails_with(errno.EAGAIN):
            (there / "f").read_bytes()
    assert time.monotonic() - began < 25  # half of what they would have waited

    link.become(Link.PASSES)
    eventually("the store's return", lambda: not mount.status()["volumes"][0]["is_away"])
    assert (there / "f").read_bytes() == b"far"
    for thread in waiting:
        thread.join(10)
    os.close(large)


def fails_to_read(descriptor: int, offset: int) -> None:
    with suppress(OSError):
        os.pread(descriptor, 1 << 20, offset)
