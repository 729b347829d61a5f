"""`volumes.toml`: what it says, and one line for every way in which it can be wrong."""

from pathlib import Path

import pytest

from ucfuse.catalog.volumes_file import read_volumes
from ucfuse.config import Source, StoreOptions, VolumeEntry
from ucfuse.errors import ConfigError

DEFAULTS = StoreOptions(region="eu")


def volumes_of(folder: Path, text: str) -> tuple[VolumeEntry, ...]:
    path = folder / "volumes.toml"
    path.write_text(text)
    return read_volumes(path, DEFAULTS)


def test_volumes_have_their_own_stores_and_take_the_rest_from_the_command_line(
    tmp_path: Path,
) -> None:
    """README, Many volumes: a volume's own settings go before those of the command line."""
    first, second = volumes_of(
        tmp_path,
        """
        [volumes."main.default.images"]
        source = "s3://bucket/prefix"
        endpoint_url = "http://127.0.0.1:9000"
        region = "us"
        profile = "reader"
        read_only = true

        [volumes."main.default.public"]
        source = "s3://open"
        no_sign_request = true
        """,
    )

    assert first == VolumeEntry(
        name="main.default.images",
        source=Source("bucket", "prefix/"),
        store=StoreOptions(endpoint_url="http://127.0.0.1:9000", region="us", profile="reader"),
        read_only=True,
    )
    assert second.store == StoreOptions(region="eu", sign_requests=False)
    assert not second.read_only


MISTAKES = {
    "not TOML": ("[volumes", "mend the file"),
    "no volumes": ("", "no volumes"),
    "volumes is a text": ('volumes = "a.b.c"', "no volumes"),
    "unknown section": ('[volume."a.b.c"]\nsource = "memory:"', "unknown key 'volume'"),
    "unknown key": ('[volumes."a.b.c"]\nsource = "memory:"\nendpoint = "x"', "known are source"),
    "named twice": (
        '[volumes."a.b.c"]\nsource = "memory:"\n[volumes."a.b.c"]\nsource = "memory:"',
        "twice",
    ),
    "two parts": ('[volumes."a.b"]\nsource = "memory:"', "'a.b': not the name"),
    "no quotes": ('[volumes.a.b.c]\nsource = "memory:"', "in quotes"),
    "empty part": ('[volumes."a..c"]\nsource = "memory:"', "not the name"),
    "slash": ('[volumes."a.b.c/d"]\nsource = "memory:"', "not the name"),
    "space": ('[volumes."a.b.c d"]\nsource = "memory:"', "not the name"),
    "long name": (f'[volumes."a.b.{"x" * 256}"]\nsource = "memory:"', "not the name"),
    "no source": ('[volumes."a.b.c"]\nregion = "eu"', "no source"),
    "bad source": ('[volumes."a.b.c"]\nsource = "bucket"', "write s3://BUCKET"),
    "a number for a text": ('[volumes."a.b.c"]\nsource = 1', "source is a text"),
    "a text for a flag": (
        '[volumes."a.b.c"]\nsource = "memory:"\nread_only = "yes"',
        "read_only is true or false",
    ),
    "a volume that is no table": ('[volumes]\n"a.b.c" = "memory:"', "not a table"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_has_one_line_with_the_file_and_the_mend(tmp_path: Path, mistake: str) -> None:
    """README, When something goes wrong: `volumes.toml`."""
    text, word = MISTAKES[mistake]

    with pytest.raises(ConfigError) as refusal:
        volumes_of(tmp_path, text)

    message = str(refusal.value)
    assert message.startswith(f"{tmp_path}/volumes.toml: ")
    assert word in message
    assert "\n" not in message


def test_missing_and_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "missing", tmp_path / "binary", tmp_path):
        with pytest.raises(ConfigError, match=str(path)):
            read_volumes(path, DEFAULTS)
