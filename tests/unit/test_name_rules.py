"""Which keys can be names, and which names can be keys."""

import pytest

from ucfuse.errors import NameNotUtf8, NameTooLong
from ucfuse.names.rules import beside, can_be_name, decoded, key_of_name, marker_of, without_beside
from ucfuse.volume import Key

LONGEST_NAME = "n" * 255
LONGEST_KEY = Key("k" * 1024)


@pytest.mark.parametrize("segment", ["a", " ", "...", ".a", "a\n", "\\", "é" * 127, LONGEST_NAME])
def test_segment_that_a_file_can_be_called_by(segment: str) -> None:
    assert can_be_name(segment)
    assert decoded(segment.encode()) == segment


@pytest.mark.parametrize("segment", ["", ".", "..", "a/b", "a\0b", LONGEST_NAME + "n", "é" * 128])
def test_segment_that_no_file_can_be_called_by(segment: str) -> None:
    assert not can_be_name(segment)


def test_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(NameNotUtf8):
        decoded(b"caf\xe9")


def test_name_over_255_bytes_is_refused() -> None:
    with pytest.raises(NameTooLong):
        decoded(b"n" * 256)
    with pytest.raises(NameTooLong):
        key_of_name(Key("d/"), LONGEST_NAME + "n")


def test_key_over_1024_bytes_is_refused_and_a_marker_counts_its_slash() -> None:
    assert key_of_name(Key("k" * 1020), "four") == "k" * 1020 + "four"
    with pytest.raises(NameTooLong):
        key_of_name(Key("k" * 1020), "fives")
    assert marker_of(Key("k" * 1023)) == "k" * 1023 + "/"
    with pytest.raises(NameTooLong):
        marker_of(LONGEST_KEY)


def test_name_beside_a_directory_leads_back_to_the_key() -> None:
    assert without_beside(beside("a")) == "a"
    assert without_beside("a") is None
    assert without_beside(beside("")) is None
