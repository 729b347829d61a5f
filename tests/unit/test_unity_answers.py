"""What the answers of a Unity Catalog server mean, and which of them are refused in words."""

from pathlib import Path
from typing import Any

import pytest

from ucfuse.catalog.unity.answers import (
    Entry,
    entries_of,
    entry_of,
    keys_of,
    next_token,
    source_of,
)
from ucfuse.catalog.unity.token import Token
from ucfuse.config import Source
from ucfuse.errors import StoreRefused, Unauthenticated, UnknownPlace

PLACE = ("main", "default", "images")
VOLUME = {"name": "images", "volume_id": "1", "storage_location": "s3://b/p"}


def test_entries_are_those_whose_names_can_be_shown() -> None:
    names = ["images", "with space", "a/b", "dotted.name", "", "x" * 256, "é", "@-_"]
    page = {"volumes": [{**VOLUME, "name": name} for name in names]}

    shown = [entry.name for entry in entries_of(page, PLACE[:2])]

    assert shown == ["images", "é", "@-_"]


@pytest.mark.parametrize("page", [{}, {"volumes": None}, {"volumes": []}])
def test_a_page_may_be_empty_and_still_have_another_one(page: dict[str, Any]) -> None:
    assert entries_of(page, PLACE[:2]) == []
    assert next_token({**page, "next_page_token": "t"}) == "t"
    assert next_token({**page, "next_page_token": ""}) == next_token(page) == ""


def test_a_volume_made_anew_or_elsewhere_is_another_one() -> None:
    entry = entry_of(VOLUME, PLACE)
    assert entry.identity != entry_of({**VOLUME, "volume_id": "2"}, PLACE).identity
    assert entry.identity != entry_of({**VOLUME, "storage_location": "s3://b/q"}, PLACE).identity


@pytest.mark.parametrize("answer", [{"volumes": [{}]}, {"volumes": ["x"]}, {"volumes": 1}])
def test_a_listing_that_makes_no_sense_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(StoreRefused):
        entries_of(answer, PLACE[:2])


PLACES = {
    "s3://bucket/p": Source("bucket", "p/"),
    "s3://bucket/p/": Source("bucket", "p/"),
    "s3://bucket": Source("bucket", ""),
    "s3a://bucket/__unitystorage/volumes/1": Source("bucket", "__unitystorage/volumes/1/"),
}


@pytest.mark.parametrize("location", PLACES)
def test_a_location_on_s3_is_a_source(location: str) -> None:
    assert source_of(Entry("images", "", "1", location), PLACE) == PLACES[location]


@pytest.mark.parametrize(
    "location", ["file:///tmp/v", "abfss://c@a.dfs.core.windows.net/v", "gs://b/v", "", "s3://b//x"]
)
def test_any_other_location_is_refused_in_words(location: str) -> None:
    with pytest.raises(UnknownPlace, match=r"uc://main\.default\.images"):
        source_of(Entry("images", "", "1", location), PLACE)


def test_keys_have_an_end_if_the_answer_has() -> None:
    pair = {"access_key_id": "a", "secret_access_key": "s", "session_token": ""}

    static = keys_of({"aws_temp_credentials": pair}, PLACE)
    ending = keys_of({"aws_temp_credentials": pair, "expiration_time": 1500}, PLACE)

    assert (static.expires_at_s, static.session_token) == (None, None)
    assert ending.expires_at_s == 1.5


@pytest.mark.parametrize(
    "answer",
    [
        {"azure_user_delegation_sas": {"sas_token": "hush"}},
        {"gcp_oauth_token": {"oauth_token": "hush"}},
        {"aws_temp_credentials": None},
        {},
    ],
)
def test_keys_for_another_store_are_refused_without_telling_them(answer: dict[str, Any]) -> None:
    with pytest.raises(UnknownPlace) as caught:
        keys_of(answer, PLACE)
    assert "hush" not in str(caught.value)


def test_keys_without_their_parts_are_refused_without_telling_them() -> None:
    with pytest.raises(StoreRefused) as caught:
        keys_of({"aws_temp_credentials": {"secret_access_key": "hush"}}, PLACE)
    assert "hush" not in str(caught.value)


async def test_a_token_is_read_again_when_its_file_changes(tmp_path: Path) -> None:
    """README, Governed volumes: tokens."""
    file = tmp_path / "token"
    file.write_text("first\n")
    token = Token(None, file)
    assert await token.current() == "first"

    (tmp_path / "next").write_text("second")
    (tmp_path / "next").replace(file)
    assert await token.current() == "second"
    file.write_text("")  # it is being written
    assert await token.current() == "second"
    file.unlink()
    with pytest.raises(Unauthenticated, match="No such file"):
        await token.current()


@pytest.mark.parametrize("content", ["", "two words", "line\nbreak", "ümlaut"])
async def test_what_cannot_be_a_token_is_refused_without_telling_it(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / "token").write_text(content)

    with pytest.raises(Unauthenticated) as caught:
        await Token(None, tmp_path / "token").current()
    assert not content or content not in str(caught.value)
