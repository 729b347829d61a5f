"""Where a bucket is reached: scheme, host, path and region, decided the way boto3 decides it.

`connect` resolves an `Endpoint` once; `requests` builds paths with it and `transport` connects to
it. Nothing here sends a request.

Concurrency: `resolve_endpoint` reads files and the environment: call it in a worker thread.
"""

from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import Any
from urllib.parse import quote, urlsplit

import boto3
import botocore.exceptions
import botocore.session
from botocore import UNSIGNED
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.compat import HTTPHeaders
from botocore.config import Config
from botocore.loaders import Loader, create_loader

from ucfuse.config import StoreOptions
from ucfuse.errors import ConfigError

__all__ = ["Endpoint", "new_session", "resolve_endpoint"]

# What boto3 signs for when nothing names a region; stores other than AWS accept it.
DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One bucket's address. `base_path` is what stands before `/KEY`: empty or `/BUCKET`."""

    bucket: str
    host: str
    base_path: str
    region: str
    tls: bool
    ca_file: str | None = None
    """Trust these certificates in place of the system's."""

    def path_of(self, key: str) -> str:
        """Return the request path of a key, each byte of it encoded as the signature has it."""
        return f"{self.base_path}/{quote(key, safe='/')}"

    def copy_source_of(self, key: str) -> str:
        """Return the value of x-amz-copy-source for a key of this bucket."""
        return f"/{self.bucket}/{quote(key, safe='/')}"


def new_session(options: StoreOptions) -> boto3.Session:
    """Return a boto3 session for the options. Raises `ConfigError`."""
    try:
        session = botocore.session.Session(profile=options.profile)
        loader = _model_loader(session.get_config_variable("data_path"))
        session.register_component("data_loader", loader)
        return boto3.Session(botocore_session=session, region_name=options.region)
    except botocore.exceptions.BotoCoreError as error:
        subject = f"profile {options.profile!r}" if options.profile else "AWS configuration"
        raise ConfigError(f"{subject}: {error}; see `aws configure`") from error


@cache
def _model_loader(data_path: str | None) -> Loader:
    """Return botocore's loader of service models, which keeps what it has read.

    Each session's own loader would read and parse the models anew: most of what connecting costs.
    """
    return create_loader(data_path)


def resolve_endpoint(bucket: str, options: StoreOptions, session: boto3.Session) -> Endpoint:
    """Ask botocore where it would send a GET of this bucket. Raises `ConfigError`.

    So AWS_ENDPOINT_URL, the profile's `endpoint_url`, `addressing_style`, `ca_bundle` and the
    rules for bucket names with dots all hold here too.
    """
    region = session.region_name or DEFAULT_REGION
    try:
        url = _url_of_get(bucket, "k", region, options.endpoint_url, session)
        ca_file = session._session.get_config_variable("ca_bundle")
    except (botocore.exceptions.BotoCoreError, ValueError) as error:
        raise ConfigError(f"s3://{bucket}: {error}; see --endpoint-url and --region") from error
    parts = urlsplit(url)
    return Endpoint(
        bucket=bucket,
        host=parts.netloc,
        base_path=parts.path.removesuffix("/k"),
        region=region,
        tls=parts.scheme == "https",
        ca_file=ca_file,
    )


def _url_of_get(
    bucket: str, key: str, region: str, endpoint_url: str | None, session: boto3.Session
) -> str:
    """Let botocore make a whole request and stop it before it leaves.

    A presigned URL would be less work, but botocore makes those for AWS's global endpoint.
    """
    urls: list[str] = []

    # Any: some versions of the stubs know no handler that answers in botocore's place.
    def intercept(request: AWSPreparedRequest, **_: Any) -> Any:
        urls.append(request.url)
        return AWSResponse(request.url, 200, HTTPHeaders(), BytesIO())

    client = session.client(
        "s3",
        region_name=region,
        endpoint_url=endpoint_url,
        config=Config(signature_version=UNSIGNED),
    )
    client.meta.events.register("before-send.s3", intercept)
    client.get_object(Bucket=bucket, Key=key)
    client.close()
    return urls[0]
