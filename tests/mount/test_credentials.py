"""Credentials that expire while a program writes: others are asked for, and nobody notices."""

import os
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.servers.server import Server

from .harness import MountVolume
from .requestproxy import RequestProxy
from .witness import Bucket

BLOCK = bytes(range(256)) * 4096

# What `credential_process` of a profile runs: it gives the keys that a file names at the time.
PROVIDER = """
import datetime, json, pathlib, sys
key = pathlib.Path(sys.argv[1]).read_text()
end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
print(json.dumps({"Version": 1, "AccessKeyId": key, "SecretAccessKey": "secret",
                  "SessionToken": "token of " + key, "Expiration": end.isoformat()}))
"""


@pytest.fixture
def place(moto: Server) -> Iterator[Bucket]:
    """A bucket of a server that takes any key, so that the proxy alone says which has expired."""
    with closing(moto.client()) as client:
        client.create_bucket(Bucket="expiring")
        yield Bucket(client, "expiring", "")


@pytest.fixture
def proxy(moto: Server) -> Iterator[RequestProxy]:
    with RequestProxy(moto.address) as running:
        yield running


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """Names the access key that the provider of the profile `changing` gives."""
    path = tmp_path / "key"
    path.write_text("FIRSTKEY")
    (tmp_path / "provider.py").write_text(PROVIDER)
    command = f"{sys.executable} {tmp_path}/provider.py {path}"
    profile = f"""
        [profile changing]
        credential_process = {command}
        region = us-east-1
        """
    (tmp_path / "config").write_text(textwrap.dedent(profile))
    return path


def test_credentials_that_expire_in_the_middle_of_an_upload_are_renewed(
    mount_volume: MountVolume, proxy: RequestProxy, place: Bucket, key_file: Path
) -> None:
    mount = mount_volume(
        "--profile=changing",
        place=place,
        over={
            "AWS_CONFIG_FILE": str(key_file.with_name("config")),
            "AWS_ENDPOINT_URL": proxy.url,
            "AWS_ACCESS_KEY_ID": "",
            "AWS_SECRET_ACCESS_KEY": "",
        },
    )
    fd = os.open(mount.path / "f", os.O_WRONLY | os.O_CREAT, 0o644)
    for _ in range(20):
        os.write(fd, BLOCK)
    proxy.wait_for("PART", 1)
    key_file.write_text("SECONDKEY")
    proxy.expire("FIRSTKEY")
    for _ in range(20):
        os.write(fd, BLOCK)
    os.close(fd)

    assert place.get("f") == BLOCK * 40
    assert proxy.carried["FIRSTKEY", "PART"] >= 1
    assert proxy.carried["SECONDKEY", "PART"] >= 1
    assert proxy.carried["SECONDKEY", "COMPLETE"] == 1
    assert proxy.refused["FIRSTKEY"] >= 1
