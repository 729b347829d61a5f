"""What must hold with any Unity Catalog: with our own server, or with one that somebody else runs.

UC_SERVER names it, UC_TOKEN says who we are there, and UC_VOLUME is a volume that we may change;
with UC_S3_ENDPOINT and UC_S3_REGION its store is another one than AWS.
"""

import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from .harness import Mount, MountVolume

API = "/api/2.1/unity-catalog"
LEVELS = ("catalogs", "schemas", "volumes")
# A listing of all of a large server would take long, and tell no more.
MOST_PER_LEVEL = 5


@dataclass(frozen=True, slots=True)
class Given:
    """A server, and a volume of it that we may change."""

    url: str
    token: str
    volume: str
    store: tuple[str, ...]

    def names(self, *above: str) -> set[str]:
        """Ask the server itself for the names at one level."""
        level = LEVELS[len(above)]
        query = dict(zip(("catalog_name", "schema_name"), above, strict=False))
        found: set[str] = set()
        while True:
            request = Request(f"{self.url}{API}/{level}?{urlencode(query)}")
            if self.token:
                request.add_header("authorization", f"Bearer {self.token}")
            with urlopen(request, timeout=30) as answer:
                page = json.load(answer)
            found |= {entry["name"] for entry in page.get(level) or []}
            if not page.get("next_page_token"):
                return found
            query["page_token"] = page["next_page_token"]


def _given_server() -> Given | None:
    url = os.environ.get("UC_SERVER")
    if not url:
        return None
    options = {"--endpoint-url": "UC_S3_ENDPOINT", "--region": "UC_S3_REGION"}
    store = [(name, os.environ.get(variable, "")) for name, variable in options.items()]
    return Given(
        url.rstrip("/"),
        os.environ.get("UC_TOKEN", ""),
        os.environ["UC_VOLUME"],
        tuple(part for name, value in store if value for part in (name, value)),
    )


@pytest.fixture
def given(request: pytest.FixtureRequest) -> Given:
    """The server that the environment names, else our own with one volume."""
    if (given := _given_server()) is not None:
        return given
    unity, server = (request.getfixturevalue(name) for name in ("unity", "server"))
    request.getfixturevalue("governed")
    unity.tokens = {"token"}
    return Given(unity.url, "token", "main.default.images", ("--endpoint-url", server.endpoint_url))


def mount_of(given: Given, mount_volume: MountVolume, *sources: str) -> Mount:
    return mount_volume(
        *("--catalog-url", given.url, *given.store),
        sources=sources,
        over={
            "UC_TOKEN": given.token,
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
        },
    )


def names_below(place: Path) -> list[str]:
    return sorted(os.listdir(place))


@pytest.mark.promise("P54")
def test_the_names_are_those_of_the_server(given: Given, mount_volume: MountVolume) -> None:
    top = mount_of(given, mount_volume).path
    assert names_below(top) == sorted(given.names())
    for catalog in names_below(top)[:MOST_PER_LEVEL]:
        assert names_below(top / catalog) == sorted(given.names(catalog))
        for schema in names_below(top / catalog)[:MOST_PER_LEVEL]:
            assert names_below(top / catalog / schema) == sorted(given.names(catalog, schema))


@pytest.mark.promise("P56")
def test_files_of_a_volume_are_written_read_listed_renamed_and_removed(
    given: Given, mount_volume: MountVolume
) -> None:
    top = mount_of(given, mount_volume, f"uc://{given.volume}").path
    place = top / f"ucfuse-test-{uuid.uuid4().hex[:8]}"
    data = os.urandom(12 << 20)  # in parts

    place.mkdir()
    (place / "large").write_bytes(data)
    (place / "small").write_bytes(b"small")
    with (place / "small").open("ab") as file:
        file.write(b", and more")

    assert names_below(place) == ["large", "small"]
    assert (place / "large").read_bytes() == data
    (place / "large").rename(place / "renamed")
    assert (place / "small").read_bytes() == b"small, and more"
    assert names_below(place) == ["renamed", "small"]
    for path in place.iterdir():
        path.unlink()
    place.rmdir()
    assert not place.exists()
