"""Every way in which a store says no has one cause."""

from dataclasses import dataclass

import pytest

from ucfuse.errors import (
    AccessDenied,
    CorruptData,
    NoSuchUpload,
    ObjectChanged,
    ObjectMissing,
    OutcomeUnclear,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    Throttled,
)
from ucfuse.store.s3.errors import Asked, cause_of, may_be_stale_credentials
from ucfuse.store.s3.messages import Answer

READ = Asked("k")
PUT = Asked("k", missing=ObjectChanged, conflict=OutcomeUnclear, changes=True)
COMPLETE = Asked("k", missing=ObjectChanged, conflict=NoSuchUpload, changes=True)


@dataclass
class CrtError(Exception):
    """What awscrt raises, as far as it is looked at."""

    name: str


def told(status: int, code: str = "") -> Answer:
    body = f"<Error><Code>{code}</Code><Message>m</Message></Error>".encode() if code else b""
    return Answer(status, {}, body, CrtError("AWS_ERROR_S3_INVALID_RESPONSE_STATUS"))


def failed(name: str) -> Answer:
    return Answer(None, {}, b"", CrtError(name))


@pytest.mark.parametrize(
    ("answer", "asked", "cause"),
    [
        (told(404), READ, ObjectMissing),
        (told(404, "NoSuchKey"), READ, ObjectMissing),
        (told(404, "NoSuchKey"), PUT, ObjectChanged),
        (told(404, "NoSuchBucket"), READ, StoreRefused),
        (told(404, "NoSuchUpload"), COMPLETE, NoSuchUpload),
        (told(412), PUT, ObjectChanged),
        (told(409, "ConditionalRequestConflict"), PUT, OutcomeUnclear),
        (told(409, "ConditionalRequestConflict"), COMPLETE, NoSuchUpload),
        (told(409, "OperationAborted"), READ, Throttled),
        (told(400, "InvalidPart"), COMPLETE, NoSuchUpload),
        (told(403), READ, AccessDenied),
        (told(400, "ExpiredToken"), READ, AccessDenied),
        (told(403, "InvalidAccessKeyId"), READ, AccessDenied),
        (told(403, "InvalidObjectState"), READ, StoreRefused),
        (told(400, "BadDigest"), PUT, CorruptData),
        (told(400, "KeyTooLongError"), PUT, StoreRefused),
        (told(301, "PermanentRedirect"), READ, StoreRefused),
        (told(501, "NotImplemented"), READ, StoreRefused),
        (told(429), READ, Throttled),
        (told(500), READ, Throttled),
        (told(502), READ, Throttled),
        (told(503, "SlowDown"), PUT, Throttled),
        (told(504), READ, Throttled),
        (told(599), READ, Throttled),
        (told(200, "InternalError"), PUT, Throttled),
        (told(200, "Nonsense"), PUT, OutcomeUnclear),
        (failed("AWS_IO_SOCKET_CONNECTION_REFUSED"), PUT, StoreUnavailable),
        (failed("AWS_IO_DNS_QUERY_FAILED"), PUT, StoreUnavailable),
        (failed("AWS_IO_SOCKET_CLOSED"), PUT, OutcomeUnclear),
        (failed("AWS_IO_SOCKET_CLOSED"), READ, StoreUnavailable),
        (failed("AWS_IO_SOCKET_TIMEOUT"), PUT, OutcomeUnclear),
        (failed("AWS_ERROR_S3_CANCELED"), PUT, OutcomeUnclear),
        (failed("AWS_ERROR_S3_CANCELED"), READ, StoreUnavailable),
        (failed("AWS_ERROR_S3_SLOW_DOWN"), PUT, Throttled),
        (failed("AWS_ERROR_HTTP_INVALID_HEADER_VALUE"), PUT, StoreRefused),
        (Answer(None, {}, b"", MemoryError()), READ, StoreUnavailable),
    ],
)
def test_an_answer_has_one_cause(answer: Answer, asked: Asked, cause: type[StoreError]) -> None:
    assert type(cause_of(answer, asked)) is cause


def test_the_code_counts_more_than_the_status() -> None:
    assert type(cause_of(told(400, "SlowDown"), READ)) is Throttled


def test_the_detail_names_the_code_and_the_region_of_a_bucket_elsewhere() -> None:
    answer = told(301, "PermanentRedirect")
    answer.headers["x-amz-bucket-region"] = "eu-west-1"
    assert cause_of(answer, READ).detail == (
        "PermanentRedirect: m (the bucket is in region eu-west-1)"
    )


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId", ""])
def test_other_credentials_might_help(code: str) -> None:
    assert may_be_stale_credentials(told(403, code))


@pytest.mark.parametrize("answer", [told(403, "AccessDenied"), told(404), told(503)])
def test_other_credentials_would_not_help(answer: Answer) -> None:
    assert not may_be_stale_credentials(answer)
