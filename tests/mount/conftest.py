"""Fixtures of the mount tests: one store for the session, a fresh prefix for every test.

`volume` is a fresh directory in one mount that all such tests share; `mount` and `mount_volume`
are daemons of the test's own, for tests that count requests, pass options or end the daemon.

Where the server is our own, every daemon has an identity that may use nothing but the prefix that
it mounts: no other key, no listing of anything else, nothing of the bucket as such.
"""

import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.servers.identities import (
    BUCKET,
    environment_of_scope,
    scope_names,
    vended_prefixes,
)
from tests.servers.server import Server, make_bucket
from tests.servers.unity import UnityServer

from .harness import Mount, MountCatalog, MountVolume, Volume, is_mounted
from .witness import Bucket


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """A directory with a short name: control sockets have at most 107 characters."""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("there is no /dev/fuse")
    path = Path(tempfile.mkdtemp(prefix="ucfuse-"))
    yield path
    left = [entry for entry in path.rglob("mnt") if is_mounted(entry)]
    assert not left, f"still mounted: {left}"
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def environment(scratch: Path, server: Server) -> dict[str, str]:
    """What a daemon's environment says, for all mounts of the session."""
    homes = {name: str(scratch / name) for name in ("XDG_STATE_HOME", "XDG_DATA_HOME")}
    return {**server.environment(), **homes}


@pytest.fixture(scope="session")
def whole_bucket(s3: Any) -> Bucket:
    """The bucket of the session, seen through boto3."""
    make_bucket(s3, BUCKET)
    return Bucket(s3, BUCKET, "")


# For the whole run, whatever conftest takes the fixture over.
UNUSED_SCOPES = iter(scope_names())


class Scopes:
    """Prefixes of the bucket that nobody has used yet, with identities of their own if we can."""

    def __init__(self, server: Server, whole: Bucket) -> None:
        self._whole = whole
        self._has_identities = server.name == "seaweedfs"

    def fresh(self) -> Bucket:
        """Return the next one."""
        name = next(UNUSED_SCOPES) if self._has_identities else uuid.uuid4().hex[:8]
        return self._whole.below(name)

    def environment(self, place: Bucket) -> dict[str, str]:
        """Return what limits a daemon to the scope that the place lies in."""
        return environment_of_scope(place.prefix) if self._has_identities else {}


@pytest.fixture(scope="session")
def scopes(server: Server, whole_bucket: Bucket) -> Scopes:
    """Prefixes for all tests of the session."""
    return Scopes(server, whole_bucket)


@pytest.fixture
def bucket(scopes: Scopes) -> Bucket:
    """A prefix of the bucket that no other test uses."""
    return scopes.fresh()


def _finish(mount: Mount, log_start: int = 0) -> None:
    # pytest shows this only when the test failed.
    sys.stderr.write(mount.log(log_start))
    complaints = mount.complaints(log_start)
    assert not complaints, complaints


@pytest.fixture
def mount_volume(
    scratch: Path, environment: dict[str, str], bucket: Bucket, scopes: Scopes
) -> Iterator[MountVolume]:
    """Start mounts of the test's own; all of them end with the test."""
    mounts: list[Mount] = []

    def start(
        *options: str,
        place: Bucket | None = None,
        memory: bool = False,
        volumes: str = "",
        sources: Sequence[str] | None = None,
        over: Mapping[str, str] = MappingProxyType({}),
    ) -> Mount:
        work = Path(tempfile.mkdtemp(dir=scratch))
        source = None if memory else place or bucket
        limited = {**environment, **scopes.environment(place or bucket), **over}
        mount = Mount(source, work, limited, options, volumes, sources)
        mounts.append(mount)
        return mount.start()

    yield start
    try:
        for mount in mounts:
            mount.close()
    finally:
        for mount in mounts:
            mount.close()
            _finish(mount)


@pytest.fixture
def unity() -> Iterator[UnityServer]:
    """A Unity Catalog server of the test's own."""
    with UnityServer() as running:
        yield running


@pytest.fixture(scope="session")
def vended_places(server: Server, whole_bucket: Bucket) -> Iterator[Bucket]:
    """Prefixes for which a catalog has keys to give; each is given to one test."""
    if server.name != "seaweedfs":
        pytest.skip(f"{server.name}: a server of somebody else does not know our identities")
    return (whole_bucket.below(prefix.removesuffix("/")) for prefix in vended_prefixes())


@pytest.fixture
def governed(unity: UnityServer, vended_places: Iterator[Bucket]) -> Bucket:
    """The bucket behind the volume `main.default.images` of the catalog."""
    place = next(vended_places)
    unity.add("main.default.images", place.prefix)
    return place


@pytest.fixture
def mount_catalog(mount_volume: MountVolume, server: Server, unity: UnityServer) -> MountCatalog:
    """Mount the catalog, or one volume of it, with no keys but those that it vends."""

    def start(*options: str, volume: str = "", endpoint_url: str = "", token: str = "") -> Mount:
        return mount_volume(
            *("--catalog-url", unity.url, "--endpoint-url", endpoint_url or server.endpoint_url),
            *options,
            sources=[f"uc://{volume}"] if volume else [],
            over={
                "AWS_ACCESS_KEY_ID": "nobody",
                "AWS_SECRET_ACCESS_KEY": "nothing",
                **({"UC_TOKEN": token} if token else {}),
            },
        )

    return start


@pytest.fixture
def mount(mount_volume: MountVolume) -> Mount:
    """A mount of the test's own, with default options."""
    return mount_volume()


class SharedMounts:
    """Mounts that many tests use one after another, one for each set of options."""

    def __init__(self, scratch: Path, environment: dict[str, str], scopes: Scopes) -> None:
        self._scratch, self._environment, self._scopes = scratch, environment, scopes
        self._started: list[Mount] = []

    def get(self, *options: str) -> Mount:
        """Return a living mount with these options and a new deadline."""
        for mount in self._started:
            if mount.options == list(options) and mount.is_alive():
                mount.watch_again()
                return mount
        place = self._scopes.fresh()
        work = Path(tempfile.mkdtemp(dir=self._scratch))
        limited = {**self._environment, **self._scopes.environment(place)}
        mount = Mount(place, work, limited, options)
        self._started.append(mount)
        return mount.start()

    def close(self) -> None:
        """End all of them."""
        for mount in self._started:
            mount.close()


@pytest.fixture(scope="session")
def shared_mounts(
    scratch: Path, environment: dict[str, str], scopes: Scopes
) -> Iterator[SharedMounts]:
    """Mounts that live longer than a test."""
    mounts = SharedMounts(scratch, environment, scopes)
    yield mounts
    mounts.close()


@contextmanager
def _fresh_directory(mount: Mount) -> Iterator[Volume]:
    log_start = mount.log_path.stat().st_size
    name = uuid.uuid4().hex[:8]
    (mount.path / name).mkdir()
    yield Volume(mount, mount.path / name, mount.bucket.below(name))
    if mount.is_alive():
        mount.watch_again()
    _finish(mount, log_start)


@pytest.fixture
def volume(shared_mounts: SharedMounts) -> Iterator[Volume]:
    """A fresh directory in a mount that lives longer than the test."""
    with _fresh_directory(shared_mounts.get()) as fresh:
        yield fresh


@pytest.fixture
def known_volume(shared_mounts: SharedMounts) -> Iterator[Volume]:
    """The same where names stay known, so that a slow machine counts no renewals of them."""
    with _fresh_directory(shared_mounts.get("--metadata-ttl=5m")) as fresh:
        yield fresh
