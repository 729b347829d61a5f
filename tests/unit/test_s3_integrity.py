"""Checksums on the way to S3 and back: what is sent, what is refused, what is verified."""

import hashlib
import zlib
from base64 import b64encode
from dataclasses import dataclass, field

import pytest

from ucfuse.errors import CorruptData, StoreRefused, StoreUnavailable
from ucfuse.metrics import Metrics
from ucfuse.store.api import Fetched
from ucfuse.store.checksums import checksum_of, to_text
from ucfuse.store.s3.client import S3Store
from ucfuse.store.s3.endpoint import Endpoint
from ucfuse.store.s3.messages import Answer, Request
from ucfuse.volume import Key

A = Key("a")
BODY = b"some bytes"
ETAG = f'"{hashlib.md5(BODY).hexdigest()}"'
REFUSAL = b"<Error><Code>InvalidArgument</Code><Message>unknown header</Message></Error>"


@dataclass
class FakeTransport:
    """Answers every request the same; without checksums if `refuses` says so."""

    refuses: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    sent: list[Request] = field(default_factory=list)

    async def send(self, request: Request, credentials: object) -> Answer:
        self.sent.append(request)
        if self.refuses and any("checksum" in name for name, _ in request.headers):
            return Answer(400, {}, REFUSAL, RuntimeError("refused"))
        return Answer(200, {"etag": ETAG, **self.headers}, self.body, None)

    def close(self) -> None:
        """There is nothing to close."""


def store_on(transport: FakeTransport) -> S3Store:
    endpoint = Endpoint("bucket", "127.0.0.1:1", "/bucket", "us-east-1", tls=False)
    store = S3Store(endpoint, None, Metrics())
    store._transport = transport  # type: ignore[assignment]
    return store


def sent_headers(transport: FakeTransport) -> list[dict[str, str]]:
    return [dict(request.headers) for request in transport.sent]


async def test_a_body_carries_its_checksum() -> None:
    transport = FakeTransport()
    await store_on(transport).put(A, BODY, checksum=checksum_of(BODY))

    (headers,) = sent_headers(transport)
    assert headers["x-amz-checksum-crc64nvme"] == to_text(checksum_of(BODY))


async def test_a_store_that_refuses_checksums_gets_an_md5_from_then_on() -> None:
    transport = FakeTransport(refuses=True)
    store = store_on(transport)
    for _ in range(2):
        assert await store.put(A, BODY, checksum=checksum_of(BODY)) == ETAG

    first, *rest = sent_headers(transport)
    assert "x-amz-checksum-crc64nvme" in first
    md5 = b64encode(hashlib.md5(BODY).digest()).decode()
    assert [headers["content-md5"] for headers in rest] == [md5, md5]


async def test_a_refusal_for_another_reason_changes_nothing() -> None:
    class Refusing(FakeTransport):
        async def send(self, request: Request, credentials: object) -> Answer:
            self.sent.append(request)
            return Answer(400, {}, REFUSAL, RuntimeError("refused"))

    transport = Refusing()
    store = store_on(transport)
    for _ in range(2):
        with pytest.raises(StoreRefused):
            await store.put(A, BODY, checksum=checksum_of(BODY))

    assert ["content-md5" in headers for headers in sent_headers(transport)] == [
        False, True, False, True,
    ]  # fmt: skip


WHOLE = {"content-range": f"bytes 0-{len(BODY) - 1}/{len(BODY)}"}
RIGHT = {"x-amz-checksum-crc64nvme": to_text(checksum_of(BODY))}
WRONG = {"x-amz-checksum-crc64nvme": to_text(checksum_of(b"others"))}
RIGHT_CRC32 = {"x-amz-checksum-crc32": b64encode(zlib.crc32(BODY).to_bytes(4, "big")).decode()}
WRONG_MD5 = {"etag": f'"{hashlib.md5(b"others").hexdigest()}"'}


@pytest.mark.parametrize(
    ("told", "is_good"),
    [
        ({}, True),
        (RIGHT, True),
        (WRONG, False),
        (WRONG_MD5, False),
        ({**WRONG_MD5, **RIGHT}, True),
        ({**WRONG_MD5, "x-amz-server-side-encryption": "aws:kms"}, True),
        ({**WRONG_MD5, "x-amz-server-side-encryption": "AES256"}, False),
        ({"etag": '"0123456789abcdef0123456789abcdef-2"'}, True),
        ({**RIGHT, "x-amz-checksum-crc64nvme": "AAAA-2"}, True),
        (RIGHT_CRC32, True),
        ({"x-amz-checksum-crc32": "AAAAAA=="}, False),
        ({**WRONG_MD5, **RIGHT_CRC32}, True),
        ({"x-amz-checksum-crc32": "AAAAAA==-2"}, True),
    ],
)
async def test_a_whole_object_is_verified_by_what_the_store_tells(
    told: dict[str, str], is_good: bool
) -> None:
    store = store_on(FakeTransport(headers={**WHOLE, **told}, body=BODY))
    if not is_good:
        with pytest.raises(CorruptData):
            await store.get(A, 0, 100)
        return
    answer = await store.get(A, 0, 100)
    assert isinstance(answer, Fetched)
    assert answer.data == BODY


async def test_an_object_whose_size_is_known_is_asked_for_without_a_range() -> None:
    """Stores tell a checksum of a whole object only."""
    transport = FakeTransport(headers=RIGHT, body=BODY)
    answer = await store_on(transport).get(A, 0, len(BODY), is_whole=True)
    assert isinstance(answer, Fetched)
    assert (answer.data, answer.info.size) == (BODY, len(BODY))
    assert "range" not in dict(transport.sent[0].headers)
    with pytest.raises(CorruptData):
        await store_on(FakeTransport(headers=WRONG, body=BODY)).get(A, 0, len(BODY), is_whole=True)


async def test_a_whole_object_that_came_cut_is_no_answer() -> None:
    transport = FakeTransport(headers=RIGHT, body=BODY[:-1])
    with pytest.raises(StoreUnavailable):
        await store_on(transport).get(A, 0, len(BODY), is_whole=True)


async def test_a_range_cannot_be_verified() -> None:
    headers = {"content-range": f"bytes 0-{len(BODY) - 1}/1000", **WRONG}
    answer = await store_on(FakeTransport(headers=headers, body=BODY)).get(A, 0, len(BODY))

    assert isinstance(answer, Fetched)
