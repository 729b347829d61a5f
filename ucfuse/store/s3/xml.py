"""The XML that S3 speaks: listings, errors, multipart answers. Pure functions of bytes.

`client` and `errors` use it. Names are compared without their namespace, which some stores omit.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from xml.sax.saxutils import escape

from ucfuse.store.api import Bytes
from ucfuse.volume import ETag, Key, ObjectInfo

__all__ = [
    "Listing",
    "MalformedAnswer",
    "complete_body",
    "parse_error",
    "parse_fields",
    "parse_listing",
    "parse_time",
    "quoted",
]


class MalformedAnswer(Exception):
    """The body is not the XML that was asked for."""


@dataclass(frozen=True, slots=True)
class Listing:
    """One page. `undecodable`: keys left out because they are not UTF-8."""

    objects: list[ObjectInfo]
    prefixes: list[str]
    next_token: str | None
    undecodable: int


def parse_listing(body: Bytes) -> Listing:
    """Read a ListObjectsV2 answer. Raises `MalformedAnswer`, also for a page cut short."""
    root = _root(body)
    space = root.tag[: root.tag.rfind("}") + 1]
    if root.tag != space + "ListBucketResult":
        raise MalformedAnswer(root.tag)
    is_encoded = root.findtext(space + "EncodingType") == "url"
    token = root.findtext(space + "NextContinuationToken")
    if root.findtext(space + "IsTruncated") == "true" and not token:
        raise MalformedAnswer("a truncated page without a token")
    items = root.findall(space + "Contents")
    objects = list(_objects(items, space, is_encoded))
    told = root.findall(f"{space}CommonPrefixes/{space}Prefix")
    prefixes = [text for each in told if (text := _decode(each.text or "", is_encoded)) is not None]
    undecodable = len(items) - len(objects) + len(told) - len(prefixes)
    return Listing(objects, prefixes, token or None, undecodable)


def _objects(items: Sequence[Element], space: str, is_encoded: bool) -> Iterator[ObjectInfo]:
    """Give the entries whose keys are UTF-8. Runs a thousand times per request: kept lean."""
    key_tag, size_tag, etag_tag, time_tag = (
        space + name for name in ("Key", "Size", "ETag", "LastModified")
    )
    for item in items:
        text = item.findtext(key_tag) or ""
        key = _decode(text, is_encoded) if "%" in text or "+" in text else text
        if key is not None:
            yield ObjectInfo(
                Key(key),
                int(item.findtext(size_tag) or 0),
                quoted(item.findtext(etag_tag) or ""),
                parse_time(item.findtext(time_tag) or ""),
            )


def _decode(text: str, is_encoded: bool) -> str | None:
    if not is_encoded:
        return text
    try:
        return unquote_to_bytes(text.replace("+", " ")).decode()
    except UnicodeDecodeError:
        return None


def quoted(etag: str) -> ETag:
    """Return the ETag with its quotes: headers always have them, some stores' XML has not."""
    return ETag(etag if etag.startswith('"') else f'"{etag}"')


@lru_cache(maxsize=1024)  # objects written together share their second
def parse_time(text: str) -> int | None:
    """Return the seconds since the epoch of an ISO time, cut to whole ones; None if it is none."""
    try:
        return int(datetime.fromisoformat(text[:19] + "+00:00").timestamp())
    except ValueError:
        return None


# An error is read by these alone: it may come cut short or from a proxy that speaks HTML.
_CODE = re.compile(rb"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(rb"<Message>([^<]*)</Message>")


def parse_error(body: Bytes) -> tuple[str, str]:
    """Return code and message of an error answer; both empty where it has none."""
    if b"<Error" not in body[:512]:
        return "", ""
    code, message = (pattern.search(body) for pattern in (_CODE, _MESSAGE))
    return (
        code[1].decode(errors="replace") if code else "",
        message[1].decode(errors="replace") if message else "",
    )


def parse_fields(body: Bytes, root_name: str) -> dict[str, str]:
    """Return the texts of the root's children. Raises `MalformedAnswer` for another root."""
    root = _root(body)
    if root.tag.rpartition("}")[2] != root_name:
        raise MalformedAnswer(root.tag)
    return {child.tag.rpartition("}")[2]: child.text or "" for child in root}


def complete_body(parts: Sequence[ETag]) -> bytes:
    """Return the body of CompleteMultipartUpload for parts 1, 2, ..."""
    items = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(etag)}</ETag></Part>"
        for number, etag in enumerate(parts, 1)
    )
    return f"<CompleteMultipartUpload>{items}</CompleteMultipartUpload>".encode()


def _root(body: Bytes) -> Element:
    try:
        return ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise MalformedAnswer(str(error)) from error
