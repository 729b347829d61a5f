"""The second witness: what a bucket holds, seen through boto3 and never through a mount.

Tests use it to check what a mount did to the store, and to act as another client of the bucket.
"""

import io
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from botocore.exceptions import ClientError

__all__ = ["Bucket"]


@dataclass(frozen=True, slots=True)
class Bucket:
    """The objects of one bucket below `prefix`. Names are keys without that prefix."""

    client: Any
    name: str
    prefix: str
    """Empty, or ends in `/`."""

    @property
    def source(self) -> str:
        """What `ucfuse mount` calls this place."""
        return f"s3://{self.name}/{self.prefix}"

    def below(self, name: str) -> "Bucket":
        """Return the part of this bucket below the directory `name`."""
        return Bucket(self.client, self.name, f"{self.prefix}{name}/")

    def put(self, name: str, data: bytes) -> None:
        """Store an object, as another client would."""
        self.client.put_object(Bucket=self.name, Key=self.prefix + name, Body=data)

    def put_all(self, names: Iterable[str], data: bytes) -> None:
        """Store many small objects with the same bytes, faster than boto3's calls can."""
        address = urlsplit(self.client.meta.endpoint_url)
        with ThreadPoolExecutor(8) as pool:
            links = threading.local()

            def put(name: str) -> None:
                if not hasattr(links, "connection"):
                    links.connection = HTTPConnection(str(address.hostname), address.port)
                place = {"Bucket": self.name, "Key": self.prefix + name}
                url = urlsplit(self.client.generate_presigned_url("put_object", place))
                links.connection.request("PUT", f"{url.path}?{url.query}", data)
                answer = links.connection.getresponse()
                answer.read()
                assert answer.status == 200, answer.status

            list(pool.map(put, names))

    def put_large(self, name: str, data: bytes) -> None:
        """Store an object by a multipart upload."""
        self.client.upload_fileobj(io.BytesIO(data), self.name, self.prefix + name)

    def get(self, name: str) -> bytes:
        """Return the bytes of an object. Raises boto3's `NoSuchKey`."""
        answer = self.client.get_object(Bucket=self.name, Key=self.prefix + name)
        body: bytes = answer["Body"].read()
        return body

    def head(self, name: str) -> dict[str, Any] | None:
        """Return what the store says of an object; None: there is none."""
        try:
            answer: dict[str, Any] = self.client.head_object(
                Bucket=self.name, Key=self.prefix + name
            )
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                return None
            raise
        return answer

    def has(self, name: str) -> bool:
        """Say whether an object of this name exists."""
        return self.head(name) is not None

    def modified_s(self, name: str) -> int:
        """Return LastModified in whole seconds since the epoch."""
        head = self.head(name)
        assert head is not None, f"no object {name!r}"
        return int(head["LastModified"].timestamp())

    def delete(self, name: str) -> None:
        """Remove an object, as another client would."""
        self.client.delete_object(Bucket=self.name, Key=self.prefix + name)

    def names(self) -> set[str]:
        """Return the names of all objects, markers included, the prefix's own marker not."""
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.name, Prefix=self.prefix
        )
        keys = (item["Key"] for page in pages for item in page.get("Contents", []))
        return {key.removeprefix(self.prefix) for key in keys} - {""}

    def files(self) -> set[str]:
        """Return the names of all objects that are not directory markers."""
        return {name for name in self.names() if not name.endswith("/")}
