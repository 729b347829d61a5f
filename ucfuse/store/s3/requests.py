"""The S3 requests that the store makes, as data. Pure functions of an endpoint and a key.

`client` sends them. Header values and paths are built here and nowhere else.
"""

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from ucfuse.store.api import Absent, Buffer, Condition, UploadId, Whole
from ucfuse.store.checksums import to_text
from ucfuse.store.s3.endpoint import Endpoint
from ucfuse.store.s3.messages import Header, Request
from ucfuse.store.s3.xml import complete_body
from ucfuse.volume import ETag

__all__ = [
    "CHECKSUM_HEADER",
    "METADATA_PREFIX",
    "abort_upload",
    "complete_upload",
    "copy_object",
    "create_upload",
    "delete_object",
    "get_object",
    "head_object",
    "list_objects",
    "put_object",
    "upload_part",
    "upload_part_copy",
]

METADATA_PREFIX = "x-amz-meta-"
CHECKSUM_HEADER = "x-amz-checksum-crc64nvme"
_NO_BODY: Header = ("content-length", "0")
_TELL_CHECKSUM: Header = ("x-amz-checksum-mode", "ENABLED")
_OF_THE_WHOLE: Header = ("x-amz-checksum-type", "FULL_OBJECT")


def head_object(at: Endpoint, key: str) -> Request:
    return Request("HeadObject", "HEAD", at.path_of(key), [_TELL_CHECKSUM])


def get_object(
    at: Endpoint,
    key: str,
    start: int,
    stop: int,
    if_match: ETag | None,
    if_none_match: ETag | None,
    *,
    is_whole: bool = False,
) -> Request:
    headers = [] if is_whole else [("range", f"bytes={start}-{stop - 1}")]
    if start == 0:
        headers.append(_TELL_CHECKSUM)
    if if_match is not None:
        headers.append(("if-match", if_match))
    if if_none_match is not None:
        headers.append(("if-none-match", if_none_match))
    return Request("GetObject", "GET", at.path_of(key), headers, most_bytes=stop - start)


def put_object(
    at: Endpoint,
    key: str,
    body: Buffer,
    condition: Condition,
    metadata: Mapping[str, str] | None,
    guard: Sequence[Header],
) -> Request:
    headers = [_length_of(body), *_condition(condition), *guard]
    for name, value in (metadata or {}).items():
        headers.append((METADATA_PREFIX + name, value))
    return Request("PutObject", "PUT", at.path_of(key), headers, body)


def delete_object(at: Endpoint, key: str, if_match: ETag | None) -> Request:
    return Request("DeleteObject", "DELETE", at.path_of(key), _condition(if_match))


def copy_object(
    at: Endpoint, source: str, source_etag: ETag, target: str, condition: Condition
) -> Request:
    headers = [
        ("x-amz-copy-source", at.copy_source_of(source)),
        ("x-amz-copy-source-if-match", source_etag),
        _NO_BODY,
        *_condition(condition),
    ]
    return Request("CopyObject", "PUT", at.path_of(target), headers)


def list_objects(
    at: Endpoint,
    prefix: str,
    *,
    delimited: bool,
    start_after: str | None,
    token: str | None,
    max_keys: int,
) -> Request:
    query = {"list-type": "2", "encoding-type": "url", "max-keys": str(max_keys), "prefix": prefix}
    if delimited:
        query["delimiter"] = "/"
    if token is not None:
        query["continuation-token"] = token
    if start_after is not None:
        query["start-after"] = start_after
    # Sorted: the order in which they are signed.
    text = "&".join(f"{name}={quote(query[name], safe='')}" for name in sorted(query))
    return Request("ListObjectsV2", "GET", f"{at.base_path or '/'}?{text}")


def create_upload(at: Endpoint, key: str, *, checksummed: bool) -> Request:
    path = f"{at.path_of(key)}?uploads="
    algorithm = [("x-amz-checksum-algorithm", "CRC64NVME"), _OF_THE_WHOLE]
    headers = [_NO_BODY, *(algorithm if checksummed else [])]
    return Request("CreateMultipartUpload", "POST", path, headers)


def upload_part(
    at: Endpoint, key: str, upload: UploadId, number: int, body: Buffer, guard: Sequence[Header]
) -> Request:
    headers = [_length_of(body), *guard]
    return Request("UploadPart", "PUT", _part_path(at, key, upload, number), headers, body)


def upload_part_copy(
    at: Endpoint,
    key: str,
    upload: UploadId,
    number: int,
    source: str,
    source_etag: ETag,
    start: int,
    stop: int,
) -> Request:
    headers = [
        ("x-amz-copy-source", at.copy_source_of(source)),
        ("x-amz-copy-source-if-match", source_etag),
        ("x-amz-copy-source-range", f"bytes={start}-{stop - 1}"),
        _NO_BODY,
    ]
    return Request("UploadPartCopy", "PUT", _part_path(at, key, upload, number), headers)


def complete_upload(
    at: Endpoint,
    key: str,
    upload: UploadId,
    parts: Sequence[ETag],
    condition: Condition,
    whole: Whole | None,
) -> Request:
    body = complete_body(parts)
    headers = [_length_of(body), ("content-type", "application/xml"), *_condition(condition)]
    if whole is not None:
        headers += [(CHECKSUM_HEADER, to_text(whole.checksum)), _OF_THE_WHOLE]
    path = f"{at.path_of(key)}?uploadId={quote(upload, safe='')}"
    return Request("CompleteMultipartUpload", "POST", path, headers, body)


def abort_upload(at: Endpoint, key: str, upload: UploadId) -> Request:
    path = f"{at.path_of(key)}?uploadId={quote(upload, safe='')}"
    return Request("AbortMultipartUpload", "DELETE", path)


def _part_path(at: Endpoint, key: str, upload: UploadId, number: int) -> str:
    return f"{at.path_of(key)}?partNumber={number}&uploadId={quote(upload, safe='')}"


def _condition(condition: Condition) -> list[Header]:
    match condition:
        case None:
            return []
        case Absent():
            return [("if-none-match", "*")]
        case etag:
            return [("if-match", etag)]


def _length_of(body: Buffer) -> Header:
    return "content-length", str(memoryview(body).nbytes)
