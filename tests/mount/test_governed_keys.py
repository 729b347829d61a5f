"""The keys that a catalog vends: renewed in time, refused, and never anybody's to see."""

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.servers.server import Server
from tests.servers.unity import Kind, Trouble, UnityServer

from .harness import Mount, MountCatalog, ucfuse
from .programs import assert_refuses_changes, eventually, fails_with
from .requestproxy import RequestProxy
from .witness import Bucket

PIECE = bytes(range(256)) * 1024
TOKEN = "a-token-that-nobody-shall-see"


@pytest.fixture
def strict(server: Server, unity: UnityServer) -> Iterator[RequestProxy]:
    """The store, which refuses keys that have expired."""
    with RequestProxy(server.address) as proxy:

        def on_vend(access_key: str, lifetime_s: float | None) -> None:
            if lifetime_s is not None:
                proxy.expire(access_key, lifetime_s)

        unity.on_vend = on_vend
        yield proxy


def write_for(seconds: float, path: Path) -> str:
    """Write without a pause for so long; return the digest of what was written."""
    digest, end_at = hashlib.sha256(), time.monotonic() + seconds
    with path.open("wb") as file:
        while time.monotonic() < end_at:
            file.write(PIECE)
            digest.update(PIECE)
            time.sleep(0.01)  # or the disk were full of it
    return digest.hexdigest()


def read_for(seconds: float, path: Path) -> None:
    """Read it again and again for so long, never from the kernel's cache."""
    end_at = time.monotonic() + seconds
    while time.monotonic() < end_at:
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while piece := file.read(1 << 18):
                assert piece == PIECE[: len(piece)]
                if time.monotonic() > end_at:
                    return


def outlive_keys(
    keys_live_s: float, seconds: float, mount: Mount, governed: Bucket, strict: RequestProxy
) -> None:
    """Write and read for longer than keys live; everything is stored and nothing was refused."""
    place = mount.path / "main/default/images"
    governed.put_large("source", PIECE * 256)

    written = write_for(seconds, place / "written")
    read_for(seconds, place / "source")

    assert hashlib.sha256(governed.get("written")).hexdigest() == written
    assert strict.refused == {}
    keys_used = {key for key, kind in strict.carried if kind in ("PART", "GET")}
    assert len(keys_used) >= 2 * min(6, int(seconds / keys_live_s))
    assert not any(key == "minioadmin" for key in keys_used)


@pytest.mark.promise("P56")
def test_keys_that_expire_are_renewed_in_mid_upload_and_in_mid_read(
    unity: UnityServer, governed: Bucket, mount_catalog: MountCatalog, strict: RequestProxy
) -> None:
    """README, Governed volumes: renewed before they expire."""
    unity.lifetime_s = 1.5
    mount = mount_catalog(endpoint_url=strict.url)
    outlive_keys(1.5, 2.5, mount, governed, strict)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.promise("P56")
def test_a_minute_of_writing_and_one_of_reading_outlives_many_keys(
    unity: UnityServer, governed: Bucket, mount_catalog: MountCatalog, strict: RequestProxy
) -> None:
    unity.lifetime_s = 5
    mount = mount_catalog(endpoint_url=strict.url)
    mount.watch_again(300)
    outlive_keys(5, 60, mount, governed, strict)


@pytest.mark.promise("P57")
def test_who_may_not_change_a_volume_has_it_read_only_until_he_may(
    unity: UnityServer, governed: Bucket, mount_catalog: MountCatalog
) -> None:
    """README, Governed volumes: a refusal of WRITE is EROFS."""
    governed.put("f", b"data")
    unity.volumes["main.default.images"].may_write = False
    mount = mount_catalog()
    images = mount.path / "main/default/images"
    assert os.access(images, os.R_OK)
    assert mount.status()["volumes"] == [] or not mount.status()["volumes"][0]["read_only"]

    assert_refuses_changes(images, errno.EROFS)
    assert (images / "f").read_bytes() == b"data"

    assert unity.vended == [("main.default.images", "READ_VOLUME")]
    assert unity.counts["WRITE_VOLUME"] == 1  # not one for each
    (told,) = mount.status()["volumes"]
    assert told["read_only"]
    assert told["problem"] == "read-only: PERMISSION_DENIED: you lack the privilege"
    assert warnings_of(mount) == ["uc://main.default.images is read-only: PERMISSION_DENIED: ..."]
    unity.volumes["main.default.images"].may_write = True
    eventually(
        "the right to write", lambda: not outcome_of(lambda: (images / "g").write_bytes(b"x"))
    )
    assert not mount.status()["volumes"][0]["read_only"]


def outcome_of(work: Callable[[], object]) -> int:
    """Return the errno that it ends with; 0: it succeeds."""
    try:
        work()
    except OSError as error:
        return error.errno or -1
    return 0


def warnings_of(mount: Mount) -> list[str]:
    """Return the warnings in the log, without time and module; what the server said is cut."""
    lines = [line for line in mount.log().splitlines() if " WARNING " in line]
    return [
        line.split(" WARNING ")[1].split(": ", 1)[1].replace("you lack the privilege", "...")
        for line in lines
        if "slower than it could be" not in line
    ]


@pytest.mark.promise("P57")
def test_who_may_not_read_a_volume_is_told_why_and_may_later(
    unity: UnityServer, governed: Bucket, mount_catalog: MountCatalog
) -> None:
    """README, Governed volumes: a refusal of READ is EACCES, and `status` has the reason."""
    governed.put("f", b"data")
    unity.volumes["main.default.images"].may_read = False
    mount = mount_catalog()
    images = mount.path / "main/default/images"
    assert images.is_dir()

    with fails_with(errno.EACCES):
        os.listdir(images)

    (told,) = mount.status()["volumes"]
    assert "PERMISSION_DENIED: you lack the privilege" in told["problem"]
    shown = ucfuse("status", environment=mount.environment).stdout
    assert "problem    main.default.images: AccessDenied: " in shown
    unity.volumes["main.default.images"].may_read = True
    eventually("the right to read", lambda: not outcome_of((images / "f").read_bytes))
    assert mount.status()["volumes"][0]["problem"] == ""


@pytest.mark.promise("P58")
def test_keys_that_cannot_be_renewed_are_eacces_with_the_cause_until_they_can(
    unity: UnityServer, governed: Bucket, mount_catalog: MountCatalog, strict: RequestProxy
) -> None:
    """README, Governed volumes: expired keys."""
    unity.lifetime_s = 1.5
    governed.put("f", b"data")
    governed.put("g", b"data")
    mount = mount_catalog("--metadata-ttl=50ms", endpoint_url=strict.url)
    images = mount.path / "main/default/images"
    assert (images / "f").read_bytes() == b"data"
    (images / "h").write_bytes(b"more")

    with unity.troubled(Trouble.FAILING, Kind.READ, Kind.WRITE):
        eventually("the end of the keys", lambda: outcome_of((images / "g").read_bytes))
        with fails_with(errno.EACCES):
            (images / "g").read_bytes()
        (told,) = mount.status()["volumes"]
        assert "INTERNAL: it broke" in told["problem"]
        with fails_with(errno.EACCES):
            (images / "h").write_bytes(b"even more")
    assert "CredentialsExpired" in mount.log()
    assert "INTERNAL: it broke" in mount.log()

    eventually("new keys", lambda: not outcome_of((images / "g").read_bytes))
    eventually("new keys", lambda: not outcome_of(partial((images / "h").write_bytes, b"again")))
    assert governed.get("h") == b"again"
    assert mount.status()["volumes"][0]["problem"] == ""


@pytest.mark.promise("P60")
def test_a_token_is_as_new_as_its_file_and_shows_nowhere(
    unity: UnityServer, governed: Bucket, mount_catalog: MountCatalog, tmp_path: Path
) -> None:
    """README, Governed volumes: tokens."""
    governed.put("f", b"data")
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}-1\n")
    unity.tokens = {f"{TOKEN}-1"}
    mount = mount_catalog("--token-file", str(file), "--metadata-ttl=0s", "--log-level=debug")
    images = mount.path / "main/default/images"
    assert os.listdir(mount.path) == ["main"]

    unity.tokens = {f"{TOKEN}-2"}
    with fails_with(errno.EACCES):
        os.listdir(mount.path)
    file.write_text(f"{TOKEN}-2\n")
    assert os.listdir(mount.path) == ["main"]
    assert (images / "f").read_bytes() == b"data"
    (images / "g").write_bytes(b"more")
    unity.tokens = {f"{TOKEN}-3"}
    (tmp_path / "next").write_text(f"{TOKEN}-3")
    (tmp_path / "next").replace(file)
    assert os.listdir(mount.path / "main/default") == ["images"]

    assert_unseen(mount)


@pytest.mark.promise("P60")
def test_a_token_of_the_environment_shows_nowhere(
    unity: UnityServer, governed: Bucket, mount_catalog: MountCatalog
) -> None:
    unity.tokens = {TOKEN}
    mount = mount_catalog("--log-level=debug", token=TOKEN)
    (mount.path / "main/default/images/f").write_bytes(b"data")
    unity.tokens = set()
    with fails_with(errno.EACCES):
        eventually("a new question", lambda: os.listdir(mount.path / "none"))
    assert_unseen(mount)


def assert_unseen(mount: Mount) -> None:
    """Neither log nor status nor any file of the daemon has a token, or a secret key."""
    files = [path for path in mount.state_dir.parent.rglob("*") if path.is_file()]
    homes = [Path(mount.environment[name]) for name in ("XDG_STATE_HOME", "XDG_DATA_HOME")]
    files += [path for home in homes for path in home.rglob("*") if path.is_file()]
    mounted = [path for path in files if mount.path not in path.parents]
    for text in (str(mount.status()), *(path.read_text(errors="replace") for path in mounted)):
        assert TOKEN not in text
        assert "not-a-secret" not in text


@pytest.mark.promise("P56")
def test_what_a_crash_left_is_committed_with_keys_of_the_catalog(
    unity: UnityServer, governed: Bucket, mount_catalog: MountCatalog, tmp_path: Path
) -> None:
    """README, Governed volumes: after a crash."""
    unity.tokens = {TOKEN}
    governed.put("f", b"begins here, ")
    mount = mount_catalog(token=TOKEN)
    images = mount.path / "main/default/images"
    descriptor = os.open(images / "f", os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, b"goes on")
    mount.kill()
    with suppress(OSError):  # ENOTCONN
        os.close(descriptor)
    (tmp_path / "token").write_text(TOKEN)
    recover = ("recover", "--state-dir", mount.state_dir)
    nobody = {**mount.environment, "UC_TOKEN": ""}
    key = f"{governed.prefix}f"

    refused = ucfuse(*recover, "commit", key, environment=nobody)
    assert refused.returncode == 1
    assert "UNAUTHENTICATED" in refused.stderr
    done = ucfuse(*recover, "commit", "--token-file", tmp_path / "token", key, environment=nobody)

    assert done.returncode == 0, done.stderr
    assert governed.get("f") == b"begins here, goes on"


@pytest.mark.promise("P56")
def test_what_is_gone_is_told_from_what_is_forbidden(
    governed: Bucket, mount_catalog: MountCatalog, strict: RequestProxy
) -> None:
    """AWS answers 403 for an object that does not exist to who may list nothing but a prefix."""
    strict.hides_missing = True
    mount = mount_catalog("--metadata-ttl=5m", endpoint_url=strict.url)
    images = mount.path / "main/default/images"
    for name in ("f", "g", "h", "i"):
        governed.put(name, b"data")
    assert sorted(os.listdir(images)) == ["f", "g", "h", "i"]
    assert (images / "f").read_bytes() == b"data"

    for name in ("f", "g", "h", "i"):
        governed.delete(name)

    with fails_with(errno.ENOENT):
        (images / "f").read_bytes()
    with fails_with(errno.ENOENT):
        os.open(images / "g", os.O_RDWR)
    with (images / "h").open("ab") as file:
        file.write(b"anew")
    assert governed.get("h") == b"anew"
    with fails_with(errno.ENOENT):
        (images / "i").rename(images / "j")
    os.close(os.open(images / "lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    with (images / "large").open("wb") as large:
        large.write(PIECE * 64)
    assert governed.get("large") == PIECE * 64
