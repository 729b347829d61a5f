"""The options that name a Unity Catalog server: what they mean, and what makes no sense."""

from pathlib import Path

import pytest

from ucfuse.cli.mount_request import parse_mount
from ucfuse.config import MountConfig

URL = ("--catalog-url", "http://uc:8080")


def config_of(*arguments: str, **environment: str) -> MountConfig:
    return parse_mount(arguments, {"HOME": "/home/user", **environment}).config


def test_all_volumes_or_one_are_mounted() -> None:
    whole = config_of(*URL, "/Volumes")
    one = config_of(*URL, "uc://main.default.images", "/mnt/images")

    assert (whole.governed, whole.label) == ((), "http://uc:8080")
    assert one.governed == ("main", "default", "images")
    assert one.label == "uc://main.default.images"
    assert one.mountpoint == Path("/mnt/images")


@pytest.mark.parametrize(
    "url", ["http://uc:8080", "http://uc:8080/", "http://uc:8080/api/2.1/unity-catalog"]
)
def test_a_url_may_end_in_the_path_of_the_api(url: str) -> None:
    catalog = config_of("--catalog-url", url, "/Volumes").catalog
    assert catalog is not None
    assert catalog.url == "http://uc:8080"


def test_a_token_comes_from_the_environment_or_a_file_and_does_not_show() -> None:
    fixed = config_of(*URL, "/Volumes", UC_TOKEN="hush")
    filed = config_of(*URL, "--token-file", "/run/token", "/Volumes", UC_TOKEN="hush")

    assert fixed.catalog is not None
    assert fixed.catalog.token == "hush"
    assert "hush" not in repr(fixed)
    assert filed.catalog is not None
    assert (filed.catalog.token, filed.catalog.token_file) == (None, Path("/run/token"))


NONSENSE = {
    "a volume without a server": ("uc://main.default.images", "/mnt"),
    "a token without a server": ("--token-file", "/run/token", "s3://bucket", "/mnt"),
    "a server and a file": (*URL, "--volumes", "volumes.toml", "/mnt"),
    "a server and a store of its own": (*URL, "--dev", "/mnt"),
    "a server and a bucket": (*URL, "s3://bucket", "/mnt"),
    "no volume": (*URL, "uc://main.default", "/mnt"),
    "no keys": (*URL, "--no-sign-request", "/mnt"),
    "no mount point": URL,
    "no URL": ("--catalog-url", "uc:8080", "/mnt"),
    "a secret in the URL": ("--catalog-url", "http://user:hush@uc:8080", "/mnt"),
}


@pytest.mark.parametrize("mistake", NONSENSE)
def test_what_makes_no_sense_exits_with_2(mistake: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        config_of(*NONSENSE[mistake])

    assert ended.value.code == 2
    assert "hush" not in capsys.readouterr().err.splitlines()[-1]
