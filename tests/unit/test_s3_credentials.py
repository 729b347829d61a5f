"""Credentials are renewed in the background, once for all who ask, and on time."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ucfuse.config import Source, StoreOptions
from ucfuse.errors import ConfigError
from ucfuse.metrics import Metrics
from ucfuse.store.connect import connect
from ucfuse.store.s3.credentials import CredentialsSource, SessionCredentials, Triple
from ucfuse.store.s3.endpoint import new_session, resolve_endpoint

OLD: Triple = ("OLDKEY", "secret", None)
NEW: Triple = ("NEWKEY", "secret", "token")


class Loader:
    """Gives what it is told to give, and notes how it was asked."""

    def __init__(self, answer: Triple | ConfigError) -> None:
        self.answer = answer
        self.asked_anew: list[bool] = []

    def __call__(self, *, anew: bool = False) -> Triple:
        self.asked_anew.append(anew)
        if isinstance(self.answer, ConfigError):
            raise self.answer
        return self.answer


async def test_credentials_are_asked_for_again_before_they_expire(
    mock_clock: MockClock, nursery: trio.Nursery
) -> None:
    loader = Loader(NEW)
    source = CredentialsSource(loader, OLD, refresh_every_s=60)
    nursery.start_soon(source.serve)
    await wait_all_tasks_blocked()
    assert source.current.access_key_id == "OLDKEY"

    mock_clock.jump(61)
    await until(lambda: source.current.access_key_id == "NEWKEY")

    assert loader.asked_anew == [False]
    assert source.current.session_token == "token"


async def test_rejected_credentials_are_renewed_once_for_all_who_ask(
    nursery: trio.Nursery,
) -> None:
    loader = Loader(NEW)
    source = CredentialsSource(loader, OLD)
    nursery.start_soon(source.serve)
    await wait_all_tasks_blocked()
    rejected, renewed = source.current, []

    async def ask() -> None:
        renewed.append(await source.renew(rejected))

    async with trio.open_nursery() as askers:
        for _ in range(5):
            askers.start_soon(ask)

    assert renewed == [True] * 5
    assert loader.asked_anew == [True]


async def test_a_store_that_rejects_everything_does_not_make_us_ask_each_time(
    nursery: trio.Nursery,
) -> None:
    loader = Loader(OLD)
    source = CredentialsSource(loader, OLD)
    nursery.start_soon(source.serve)
    await wait_all_tasks_blocked()
    assert [await source.renew(source.current) for _ in range(3)] == [False] * 3
    assert loader.asked_anew == [True]


async def test_a_failed_renewal_keeps_what_there_is(nursery: trio.Nursery) -> None:
    loader = Loader(ConfigError("signed out"))
    source = CredentialsSource(loader, OLD)
    nursery.start_soon(source.serve)
    await wait_all_tasks_blocked()
    assert not await source.renew(source.current)
    assert source.current.access_key_id == "OLDKEY"


async def test_without_a_service_nobody_waits_for_a_renewal() -> None:
    source = CredentialsSource(Loader(NEW), OLD)
    assert not await source.renew(source.current)


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An AWS configuration of the test's own, and nothing else to find credentials in."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    config = tmp_path / "config"
    config.write_text("")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return config


@pytest.mark.usefixtures("profile")
async def test_no_credentials_is_one_line_with_the_mend() -> None:
    with pytest.raises(ConfigError, match="--no-sign-request"):
        await connect(Source("bucket"), StoreOptions(), Metrics())


@pytest.mark.usefixtures("profile")
async def test_an_unsigned_store_needs_none() -> None:
    store = await connect(Source("bucket"), StoreOptions(sign_requests=False), Metrics())
    await store.aclose()
    with pytest.raises(ConfigError, match="nobody"):
        await connect(Source("bucket"), StoreOptions(profile="nobody"), Metrics())


def test_a_profile_edited_meanwhile_is_read_again(profile: Path) -> None:
    profile.write_text("[profile p]\naws_access_key_id=A\naws_secret_access_key=B\n")
    options = StoreOptions(profile="p")
    credentials = SessionCredentials(options, new_session(options))
    assert credentials.load() == ("A", "B", None)
    assert not credentials.expires

    profile.write_text("[profile p]\naws_access_key_id=C\naws_secret_access_key=D\n")
    assert credentials.load(anew=True) == ("C", "D", None)


@pytest.mark.parametrize(
    ("bucket", "config", "options", "address"),
    [
        ("bucket", "", {}, ("bucket.s3.amazonaws.com", "", True)),
        ("dot.ted", "", {}, ("s3.amazonaws.com", "/dot.ted", True)),
        ("bucket", "", {"region": "eu-west-1"}, ("bucket.s3.eu-west-1.amazonaws.com", "", True)),
        (
            "bucket",
            "",
            {"endpoint_url": "http://127.0.0.1:9000"},
            ("127.0.0.1:9000", "/bucket", False),
        ),
        (
            "bucket",
            "[default]\nendpoint_url = https://minio.example\ns3 =\n  addressing_style = virtual\n",
            {},
            ("bucket.minio.example", "", True),
        ),
    ],
)
def test_a_bucket_is_where_boto3_would_look(
    profile: Path,
    bucket: str,
    config: str,
    options: dict[str, str],
    address: tuple[str, str, bool],
) -> None:
    profile.write_text(config)
    chosen = StoreOptions(**options)  # type: ignore[arg-type]
    endpoint = resolve_endpoint(bucket, chosen, new_session(chosen))
    assert (endpoint.host, endpoint.base_path, endpoint.tls) == address


@pytest.mark.usefixtures("profile")
@pytest.mark.parametrize("url", ["127.0.0.1:9000", "ftp//x"])
def test_an_endpoint_that_is_no_url_is_named(url: str) -> None:
    chosen = StoreOptions(endpoint_url=url)
    with pytest.raises(ConfigError, match="--endpoint-url"):
        resolve_endpoint("bucket", chosen, new_session(chosen))


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run, worker threads included, until the condition holds."""
    while not condition():
        await trio.lowlevel.checkpoint()
