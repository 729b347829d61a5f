"""`S3Store`: one bucket of S3 or of a look-alike, behind the interface in `store.api`.

`connect` builds it and wraps it in `metered` and `retrying`. Each method sends one request and
says what its answer means; requests are made in `requests`, sent by `transport`, and failures are
named by `errors`.

It never repeats a request (but one whose checksum the store does not know is sent with another)
and never decides what an unclear outcome means.

Concurrency: any number of requests at once, all from one trio loop.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from ucfuse.errors import (
    NoSuchUpload,
    ObjectChanged,
    ObjectMissing,
    OutcomeUnclear,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    Throttled,
)
from ucfuse.metrics import Metrics
from ucfuse.store.api import (
    Buffer,
    Checksum,
    Condition,
    Fetched,
    ListPage,
    NotModified,
    ObjectHead,
    UploadId,
    Whole,
)
from ucfuse.store.s3 import answers, requests, xml
from ucfuse.store.s3.credentials import Signing
from ucfuse.store.s3.endpoint import Endpoint
from ucfuse.store.s3.errors import Asked, Understood, cause_of, may_be_stale_credentials
from ucfuse.store.s3.integrity import checksum_guard, md5_guard, verify_whole
from ucfuse.store.s3.messages import Answer, Header, Request
from ucfuse.store.s3.transport import Transport
from ucfuse.volume import ETag, Key, ObjectInfo

__all__ = ["MOST_CONNECTIONS", "S3Store"]

log = logging.getLogger(__name__)

# As many as awscrt opens for a fast network.
MOST_CONNECTIONS = 100
NOT_MODIFIED = 304
# AWS answers so too, in place of 404, to who may list nothing but a prefix.
FORBIDDEN = 403
OF_ONE_OBJECT = frozenset({"HeadObject", "GetObject", "CopyObject", "UploadPartCopy"})
# How stores answer a range that has no bytes: as S3 does, or 200 without a Content-Range.
NO_BYTES = (416, "AWS_ERROR_S3_MISSING_CONTENT_RANGE_HEADER")


class S3Store:
    """Implements `ObjectStore`. Owns its transport; `credentials` None: nothing is signed."""

    def __init__(
        self,
        endpoint: Endpoint,
        credentials: Signing | None,
        metrics: Metrics,
        on_answer: Callable[[], None] = lambda: None,
        most_connections: int = MOST_CONNECTIONS,
    ) -> None:
        self._at = endpoint
        self._credentials = credentials
        self._metrics = metrics
        self._transport = Transport(endpoint, on_answer, most_connections)
        # Whether the store takes uploads with CRC64NVME; found out by the first that it refuses.
        self._is_checksummed = True

    async def head(self, key: Key) -> ObjectHead:
        answer = await self._ask(requests.head_object(self._at, key), Asked(key))
        with Understood(Asked(key)):
            return answers.head_of(key, answer)

    async def get(
        self,
        key: Key,
        start: int,
        stop: int,
        *,
        if_match: ETag | None = None,
        if_none_match: ETag | None = None,
        is_whole: bool = False,
    ) -> Fetched | NotModified:
        if stop <= start:
            return await self._get_nothing(key, start, if_match, if_none_match)
        asked = Asked(key, missing=ObjectMissing if if_match is None else ObjectChanged)
        request = requests.get_object(
            self._at, key, start, stop, if_match, if_none_match, is_whole=is_whole
        )
        answer = await self._ask(request, asked, accept=(NOT_MODIFIED, *NO_BYTES))
        if answer.status == NOT_MODIFIED and if_none_match is not None:
            return NotModified(if_none_match)
        if _is_one_of(answer, NO_BYTES):
            return await self._get_past_the_end(key, start, if_match, if_none_match)
        with Understood(asked):
            fetched = answers.fetched_of(key, start, stop, answer, is_whole=is_whole)
        _require(fetched.info, if_match)  # a store that ignores If-Match sends what it has
        if len(fetched.data) == fetched.info.size:
            await verify_whole(key, fetched.data, answer)
        return fetched

    async def put(
        self,
        key: Key,
        body: Buffer,
        *,
        condition: Condition = None,
        metadata: Mapping[str, str] | None = None,
        checksum: Checksum | None = None,
    ) -> ETag:
        asked = Asked(key, missing=ObjectChanged, conflict=OutcomeUnclear, changes=True)

        def request(guard: Sequence[Header]) -> Request:
            return requests.put_object(self._at, key, body, condition, metadata, guard)

        answer = await self._ask_guarded(request, body, checksum, asked)
        with Understood(asked):
            return answers.etag_of(answer)

    async def delete(self, key: Key, *, if_match: ETag | None = None) -> None:
        asked = Asked(key, missing=ObjectChanged, conflict=OutcomeUnclear, changes=True)
        request = requests.delete_object(self._at, key, if_match)
        await self._ask(request, asked, accept=(404,) if if_match is None else ())

    async def copy(
        self, source: Key, source_etag: ETag, target: Key, *, condition: Condition = None
    ) -> ObjectInfo:
        asked = Asked(source, conflict=OutcomeUnclear, changes=True)
        request = requests.copy_object(self._at, source, source_etag, target, condition)
        answer = await self._ask(request, asked)
        etag = xml.quoted(_field(answer, "CopyObjectResult", "ETag", asked))
        modified = xml.parse_time(_field(answer, "CopyObjectResult", "LastModified", asked))
        # The answer does not tell the size.
        self._metrics.store_requests["HEAD"] += 1
        try:
            return await self._present(target, etag)
        except ObjectChanged:
            # The copy was made, and another client was quick to replace it: no failure of ours.
            return ObjectInfo(target, 0, etag, modified)

    async def list_page(
        self,
        prefix: str,
        *,
        delimited: bool,
        start_after: str | None = None,
        token: str | None = None,
        max_keys: int = 1000,
    ) -> ListPage:
        asked = Asked(prefix)
        request = requests.list_objects(
            self._at,
            prefix,
            delimited=delimited,
            start_after=start_after,
            token=token,
            max_keys=max_keys,
        )
        answer = await self._ask(request, asked)
        with Understood(asked):
            page = xml.parse_listing(answer.body)
        self._metrics.skipped_keys += page.undecodable
        return ListPage(page.objects, page.prefixes, page.next_token)

    async def create_upload(self, key: Key) -> UploadId:
        asked = Asked(key, changes=True)
        try:
            answer = await self._ask(self._creation(key), asked)
        except StoreRefused as cause:
            if not self._is_checksummed:
                raise
            self._note_no_checksums(cause)
            answer = await self._ask(self._creation(key), asked)
        return UploadId(_field(answer, "InitiateMultipartUploadResult", "UploadId", asked))

    async def upload_part(
        self,
        key: Key,
        upload: UploadId,
        number: int,
        body: Buffer,
        *,
        checksum: Checksum | None = None,
    ) -> ETag:
        asked = Asked(key, missing=NoSuchUpload, changes=True)

        def request(guard: Sequence[Header]) -> Request:
            return requests.upload_part(self._at, key, upload, number, body, guard)

        answer = await self._ask_guarded(request, body, checksum, asked)
        with Understood(asked):
            return answers.etag_of(answer)

    async def upload_part_copy(
        self,
        key: Key,
        upload: UploadId,
        number: int,
        source: Key,
        source_etag: ETag,
        start: int,
        stop: int,
    ) -> ETag:
        asked = Asked(source, changes=True)  # an upload that is gone has a code of its own
        answer = await self._ask(
            requests.upload_part_copy(
                self._at, key, upload, number, source, source_etag, start, stop
            ),
            asked,
        )
        if not answer.body:  # it took the request for a part without bytes
            raise StoreRefused(source, "the store does not copy parts")
        return xml.quoted(_field(answer, "CopyPartResult", "ETag", asked))

    async def complete_upload(
        self,
        key: Key,
        upload: UploadId,
        parts: Sequence[ETag],
        *,
        condition: Condition = None,
        whole: Whole | None = None,
    ) -> ETag:
        missing = NoSuchUpload if condition is None else ObjectChanged
        asked = Asked(key, missing=missing, conflict=NoSuchUpload, changes=True)
        stated = whole if self._is_checksummed else None
        request = requests.complete_upload(self._at, key, upload, parts, condition, stated)
        answer = await self._ask(request, asked)
        return xml.quoted(_field(answer, "CompleteMultipartUploadResult", "ETag", asked))

    async def abort_upload(self, key: Key, upload: UploadId) -> None:
        request = requests.abort_upload(self._at, key, upload)
        await self._ask(request, Asked(key, changes=True), accept=(404,))

    async def aclose(self) -> None:
        self._transport.close()

    async def _get_nothing(
        self, key: Key, start: int, if_match: ETag | None, if_none_match: ETag | None
    ) -> Fetched | NotModified:
        if if_match is None:
            info = (await self.head(key)).info
        else:
            info = await self._present(key, if_match)
        return NotModified(info.etag) if info.etag == if_none_match else Fetched(info, start, b"")

    async def _present(self, key: Key, etag: ETag) -> ObjectInfo:
        """Return what HEAD says of exactly this version. Raises `ObjectChanged`."""
        try:
            info = (await self.head(key)).info
        except ObjectMissing as missing:
            raise ObjectChanged(key, f"expected {etag}, got no object") from missing
        _require(info, etag)
        return info

    async def _get_past_the_end(
        self, key: Key, start: int, if_match: ETag | None, if_none_match: ETag | None
    ) -> Fetched | NotModified:
        """Find out what the answer did not say: which version it is that ends before `start`."""
        self._metrics.store_requests["HEAD"] += 1
        answer = await self._get_nothing(key, start, if_match, if_none_match)
        if isinstance(answer, Fetched) and answer.info.size > start:
            raise StoreUnavailable(key, f"no bytes from {start}, though it has {answer.info.size}")
        return answer

    async def _ask_guarded(
        self,
        request: Callable[[Sequence[Header]], Request],
        body: Buffer,
        checksum: Checksum | None,
        asked: Asked,
    ) -> Answer:
        """Send a body that the store verifies: by `checksum`, or by MD5 where it knows no other."""
        if checksum is None:
            return await self._ask(request(()), asked)
        if not self._is_checksummed:
            return await self._ask(request(await md5_guard(body)), asked)
        try:
            return await self._ask(request(checksum_guard(checksum)), asked)
        except StoreRefused as cause:
            # Perhaps the header is all that it does not like. A refusal changes nothing.
            answer = await self._ask(request(await md5_guard(body)), asked)
            self._note_no_checksums(cause)
            return answer

    def _creation(self, key: Key) -> Request:
        return requests.create_upload(self._at, key, checksummed=self._is_checksummed)

    def _note_no_checksums(self, cause: StoreRefused) -> None:
        log.warning("the store refuses CRC64NVME; uploads carry Content-MD5 instead: %s", cause)
        self._is_checksummed = False

    async def _ask(
        self, request: Request, asked: Asked, accept: Sequence[int | str] = ()
    ) -> Answer:
        """Return the answer if it is a success, or has a status or error name in `accept`."""
        source = self._credentials
        credentials = None
        if source is not None:
            credentials = await source.at_hand(for_changes=asked.changes)
        answer = await self._transport.send(request, credentials)
        if answer.error is None or _is_one_of(answer, accept):
            return answer
        cause = cause_of(answer, asked)
        if answer.status == FORBIDDEN and await self._is_absent(request, asked):
            raise asked.missing(asked.subject, f"not in a listing; {cause.detail}")
        if source is None:
            if asked.changes and isinstance(cause, ObjectChanged):
                # Unsigned, the transport may have repeated a change that had already succeeded.
                raise OutcomeUnclear(asked.subject, cause.detail) from answer.error
        elif may_be_stale_credentials(answer) and await source.renew(credentials):
            raise Throttled(asked.subject, "credentials renewed: " + cause.detail)
        raise cause from answer.error

    async def _is_absent(self, request: Request, asked: Asked) -> bool:
        """Say whether an object was refused that does not exist: a listing of its key tells."""
        if request.operation not in OF_ONE_OBJECT:
            return False
        self._metrics.store_requests["LIST"] += 1
        try:
            page = await self.list_page(asked.subject, delimited=False, max_keys=1)
        except StoreError:
            return False
        return not any(info.key == asked.subject for info in page.objects)


def _is_one_of(answer: Answer, accepted: Sequence[int | str]) -> bool:
    return answer.status in accepted or answer.error_name in accepted


def _require(info: ObjectInfo, etag: ETag | None) -> None:
    if etag is not None and info.etag != etag:
        raise ObjectChanged(info.key, f"expected {etag}, got {info.etag}")


def _field(answer: Answer, root_name: str, name: str, asked: Asked) -> str:
    """Return one text of an XML answer; a 200 that carries an error is that error."""
    code, _ = xml.parse_error(answer.body)
    if code:
        raise cause_of(answer, asked)
    with Understood(asked):
        return xml.parse_fields(answer.body, root_name)[name]
