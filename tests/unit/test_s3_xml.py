"""Reading and writing S3's XML."""

import time

import pytest

from ucfuse.store.s3.answers import parse_http_date
from ucfuse.store.s3.xml import (
    MalformedAnswer,
    complete_body,
    parse_error,
    parse_fields,
    parse_listing,
    parse_time,
)
from ucfuse.volume import ETag, ObjectInfo

S3 = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


def page(
    *keys: str,
    prefixes: tuple[str, ...] = (),
    tail: str = "",
    space: str = S3,
    encoded: bool = True,
) -> bytes:
    contents = "".join(
        f"<Contents><Key>{key}</Key><LastModified>2026-11-29T14:05:06.789Z</LastModified>"
        f"<ETag>&quot;e&quot;</ETag><Size>7</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for key in keys
    )
    common = "".join(f"<CommonPrefixes><Prefix>{p}</Prefix></CommonPrefixes>" for p in prefixes)
    encoding = "<EncodingType>url</EncodingType>" if encoded else ""
    text = f"<ListBucketResult {space}>{encoding}{contents}{common}{tail}</ListBucketResult>"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()


def test_an_entry_has_key_size_etag_and_whole_seconds() -> None:
    listing = parse_listing(page("a/b"))
    assert listing.objects == [ObjectInfo("a/b", 7, '"e"', 1795961106)]  # type: ignore[arg-type]
    assert listing.next_token is None


def test_a_store_that_uses_no_namespace_is_understood() -> None:
    listing = parse_listing(page("a", prefixes=("d/",), space=""))
    assert [info.key for info in listing.objects] == ["a"]
    assert listing.prefixes == ["d/"]


@pytest.mark.parametrize(
    ("told", "key"),
    [
        ("sp+ace", "sp ace"),
        ("pl%2Bus", "pl+us"),
        ("new%0Aline", "new\nline"),
        ("%C3%BC/%F0%9F%98%80", "ü/😀"),
        ("per%2525cent", "per%25cent"),
    ],
)
def test_encoded_keys_are_decoded(told: str, key: str) -> None:
    assert parse_listing(page(told)).objects[0].key == key
    assert parse_listing(page(prefixes=(told + "/",))).prefixes == [key + "/"]


def test_a_store_that_does_not_encode_is_taken_by_its_word() -> None:
    assert parse_listing(page("a+b%20c", encoded=False)).objects[0].key == "a+b%20c"


def test_keys_that_are_not_utf8_are_left_out_and_counted() -> None:
    listing = parse_listing(page("a", "b%FF", "c", prefixes=("d%FE/", "e/")))
    assert [info.key for info in listing.objects] == ["a", "c"]
    assert listing.prefixes == ["e/"]
    assert listing.undecodable == 2


def test_a_page_that_is_not_the_last_has_a_token() -> None:
    tail = "<IsTruncated>true</IsTruncated><NextContinuationToken>t=/+</NextContinuationToken>"
    assert parse_listing(page("a", tail=tail)).next_token == "t=/+"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>busy",
        b"<html></html>",
        page("a")[:-30],
        page("a", tail="<IsTruncated>true</IsTruncated>"),
    ],
)
def test_a_page_that_is_not_whole_is_never_an_empty_listing(body: bytes) -> None:
    with pytest.raises(MalformedAnswer):
        parse_listing(body)


def test_a_thousand_keys_are_read_in_well_under_twenty_milliseconds() -> None:
    body = page(*(f"some/where/file-{i:05d}+%C3%BC.bin" for i in range(1000)))
    best = min(_seconds_to_parse(body) for _ in range(10))
    assert best < 0.02


def _seconds_to_parse(body: bytes) -> float:
    before = time.thread_time()
    assert len(parse_listing(body).objects) == 1000
    return time.thread_time() - before


def test_an_error_is_read_from_whatever_came() -> None:
    body = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Less, please</Message>'
    assert parse_error(body) == ("SlowDown", "Less, please")
    assert parse_error(b"<html>Bad gateway</html>") == ("", "")
    assert parse_error(b"") == ("", "")


def test_fields_of_another_answer_are_not_read() -> None:
    with pytest.raises(MalformedAnswer):
        parse_fields(b"<Error><Code>x</Code></Error>", "CopyObjectResult")


def test_parts_are_listed_in_order() -> None:
    assert complete_body([ETag('"a"'), ETag('"b"')]) == (
        b"<CompleteMultipartUpload>"
        b'<Part><PartNumber>1</PartNumber><ETag>"a"</ETag></Part>'
        b'<Part><PartNumber>2</PartNumber><ETag>"b"</ETag></Part>'
        b"</CompleteMultipartUpload>"
    )


def test_listings_and_headers_tell_the_same_time() -> None:
    assert parse_http_date("Sun, 29 Nov 2026 14:05:06 GMT") == 1795961106
    assert (
        parse_time("2026-11-29T14:05:06.999Z") == parse_time("2026-11-29T14:05:06Z") == 1795961106
    )


@pytest.mark.parametrize("text", ["", "yesterday", "Sun, 29 Foo 2026 14:05:06 GMT"])
def test_a_date_that_is_none_is_no_mtime(text: str) -> None:
    assert parse_http_date(text) is None
    assert parse_time(text) is None
