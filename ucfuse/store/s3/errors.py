"""From what a store or the network said to a cause: the only translation below the file system.

`client` asks `cause_of` for every answer that is not the one it wanted, and reads the others inside
`Understood`. Looked up in this order:
the S3 error code, the HTTP status, the name of awscrt's error. Message texts decide nothing.
"""

from dataclasses import dataclass

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
from ucfuse.store.s3.messages import Answer
from ucfuse.store.s3.xml import MalformedAnswer, parse_error

__all__ = ["Asked", "Understood", "cause_of", "may_be_stale_credentials"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request wanted, as far as the meaning of its failure depends on it."""

    subject: str
    missing: type[StoreError] = ObjectMissing
    """What 404 means."""
    conflict: type[StoreError] = Throttled
    """What it means that another request on the key was in the way (409)."""
    changes: bool = False
    """Whether the store may be another one after it: silence is then no answer."""


_BY_CODE: dict[str, type[StoreError]] = {
    "AccessDenied": AccessDenied,
    "AccountProblem": AccessDenied,
    "AllAccessDisabled": AccessDenied,
    "AuthorizationHeaderMalformed": StoreRefused,  # mostly: signed for another region
    "BadDigest": CorruptData,
    "EntityTooSmall": StoreRefused,
    "ExpiredToken": AccessDenied,
    "InternalError": Throttled,
    "InvalidAccessKeyId": AccessDenied,
    "InvalidDigest": CorruptData,
    "InvalidObjectState": StoreRefused,  # archived: 403, but no permission helps
    "InvalidPart": NoSuchUpload,  # a part is gone: all of them anew
    "InvalidPartOrder": NoSuchUpload,
    "InvalidToken": AccessDenied,
    "NoSuchBucket": StoreRefused,  # never "no such object": that would read as a deletion
    "NoSuchUpload": NoSuchUpload,
    "PreconditionFailed": ObjectChanged,
    "RequestLimitExceeded": Throttled,
    "RequestTimeTooSkewed": AccessDenied,
    "RequestTimeout": Throttled,  # 400: the body came too slowly, nothing was done
    "ServiceUnavailable": Throttled,
    "SignatureDoesNotMatch": AccessDenied,
    "SlowDown": Throttled,
    "Throttling": Throttled,
    "TokenRefreshRequired": AccessDenied,
    "XAmzContentChecksumMismatch": CorruptData,
    "XAmzContentSHA256Mismatch": CorruptData,
}
_CONFLICT_CODES = frozenset({"ConditionalRequestConflict", "OperationAborted"})

_BY_STATUS: dict[int, type[StoreError]] = {
    401: AccessDenied,
    403: AccessDenied,
    408: Throttled,
    412: ObjectChanged,
    429: Throttled,
    500: Throttled,
    501: StoreRefused,
    502: Throttled,
    503: Throttled,
    504: Throttled,
}

_BY_CRT_NAME: dict[str, type[StoreError]] = {
    # No connection came about, so nothing was sent.
    "AWS_IO_SOCKET_CONNECTION_REFUSED": StoreUnavailable,
    "AWS_IO_SOCKET_CONNECT_ABORTED": StoreUnavailable,
    "AWS_IO_DNS_QUERY_FAILED": StoreUnavailable,
    "AWS_IO_DNS_INVALID_NAME": StoreUnavailable,
    "AWS_IO_DNS_NO_ADDRESS_FOR_HOST": StoreUnavailable,
    "AWS_IO_TLS_ERROR_NEGOTIATION_FAILURE": StoreUnavailable,
    "AWS_IO_TLS_NEGOTIATION_TIMEOUT": StoreUnavailable,
    # The request itself cannot be spoken.
    "AWS_ERROR_HTTP_INVALID_HEADER_NAME": StoreRefused,
    "AWS_ERROR_HTTP_INVALID_HEADER_VALUE": StoreRefused,
    "AWS_ERROR_HTTP_INVALID_PATH": StoreRefused,
    # The store did answer, though awscrt keeps the answer to itself.
    "AWS_ERROR_S3_SLOW_DOWN": Throttled,
    "AWS_ERROR_S3_INTERNAL_ERROR": Throttled,
    "AWS_ERROR_S3_REQUEST_TIME_TOO_SKEWED": AccessDenied,
    "AWS_ERROR_S3_OBJECT_MODIFIED": ObjectChanged,
    "AWS_ERROR_S3_RESPONSE_CHECKSUM_MISMATCH": CorruptData,
}

_STALE_CODES = frozenset(
    {"ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "TokenRefreshRequired"}
)


class Understood:
    """A block that reads an answer: one that makes no sense is no answer."""

    __slots__ = ("_asked",)

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, MalformedAnswer | KeyError | ValueError):
            cause = OutcomeUnclear if self._asked.changes else StoreUnavailable
            raise cause(self._asked.subject, f"unusable answer: {error}") from error


def cause_of(answer: Answer, asked: Asked) -> StoreError:
    """Return the cause to raise for an answer that is not the one that was asked for."""
    code, message = parse_error(answer.body)
    kind = _by_code(code, asked) or _by_status(answer.status, asked) or _by_name(answer, asked)
    return kind(asked.subject, _detail(answer, code, message))


def may_be_stale_credentials(answer: Answer) -> bool:
    """Return whether other credentials might help. The answer to a HEAD cannot tell for sure."""
    code, _ = parse_error(answer.body)
    return code in _STALE_CODES or (not code and answer.status in (400, 401, 403))


def _by_code(code: str, asked: Asked) -> type[StoreError] | None:
    return asked.conflict if code in _CONFLICT_CODES else _BY_CODE.get(code)


def _by_status(status: int | None, asked: Asked) -> type[StoreError] | None:
    if status is None or status < 300:
        return None
    if status == 404:
        return asked.missing
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return Throttled if status >= 500 else StoreRefused


def _by_name(answer: Answer, asked: Asked) -> type[StoreError]:
    silence = OutcomeUnclear if asked.changes else StoreUnavailable
    return _BY_CRT_NAME.get(answer.error_name, silence)


def _detail(answer: Answer, code: str, message: str) -> str:
    if code:
        region = answer.headers.get("x-amz-bucket-region")
        return f"{code}: {message}" + (f" (the bucket is in region {region})" if region else "")
    if answer.error_name == "AWS_ERROR_S3_CANCELED":  # its hidden repeat was; the cause is lost
        return "refused, cut or answered 5xx"
    return f"HTTP {answer.status}" if answer.status else str(answer.error)
