"""Durations and sizes as users write them, and the names of volumes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucfuse.catalog.sources import parse_source
from ucfuse.config import Source
from ucfuse.errors import ConfigError
from ucfuse.units import duration_text, parse_duration, parse_size, size_text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("0s", 0), ("10s", 10), ("1.5s", 1.5), ("5m", 300), ("1h", 3600)],
)
def test_durations_are_read_with_their_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "10", "s", "-1s", "1 s", "1d", "1S", "1e3s", "\u0661s", "1s\n2"]
)
def test_duration_without_number_or_known_unit_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="10s"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("0B", 0), ("17B", 17), ("4KiB", 4096), ("512MiB", 512 << 20), ("1.5GiB", 3 << 29)],
)
def test_sizes_are_read_with_their_unit(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "512", "512MB", "512M", "512mib", "-1MiB", "1 GiB"])
def test_size_that_can_be_misread_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="512MiB"):
        parse_size(text)


@given(st.integers(0, 1 << 60))
def test_printed_size_is_near_the_size_that_it_stands_for(size_bytes: int) -> None:
    assert parse_size(size_text(size_bytes)) == pytest.approx(size_bytes, rel=0.06)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0s"), (9.94, "9.9s"), (59.9, "59s"), (60, "1m00s"), (303, "5m03s"), (7260, "2h01m")],
)
def test_printed_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("s3://data", Source("data")),
        ("s3://data/", Source("data")),
        ("s3://data/a/b", Source("data", "a/b/")),
        ("s3://data/a/b/", Source("data", "a/b/")),
        ("memory:", Source(None)),
    ],
)
def test_source_names_a_bucket_and_a_directory_in_it(text: str, source: Source) -> None:
    assert parse_source(text) == source


@pytest.mark.parametrize(
    "text",
    [
        *("", "data", "/data", "s3:/data", "S3://data", "https://data", "memory"),
        *("s3://", "s3:///a", "s3://a b", "s3://da?ta", "s3://d", "s3://data//", "s3://data//a"),
        *("s3://data/a//b", "s3://data/../b", "s3://data/./b", "s3://data/" + "é" * 512),
        "s3://data/\udcff",
    ],
)
def test_source_that_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_source(text)
