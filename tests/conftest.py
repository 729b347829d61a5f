"""Fixtures and rules of every test group.

Servers run once per session and only if a test asks for one. What this machine cannot run is
skipped; where the environment says CI=true, a skip is a failure.
"""

import os
import signal
import uuid
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any

import pytest

from tests.servers.given import given_server
from tests.servers.moto import running_moto
from tests.servers.seaweedfs import running_seaweedfs
from tests.servers.server import Server
from ucfuse.errors import ConfigError

IN_CI = os.environ.get("CI") == "true"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the tests that take minutes")


def pytest_configure() -> None:
    # What a shell starts in the background ignores Ctrl-C, and so would all that the tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _forbid_skip_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _forbid_skip_in_ci(report)
    return report


def _forbid_skip_in_ci(report: pytest.TestReport | pytest.CollectReport) -> None:
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow: {report.longreprtext}"


@contextmanager
def _or_skip(running: AbstractContextManager[Server]) -> Iterator[Server]:
    with ExitStack() as stack:
        try:
            server = stack.enter_context(running)
        except ConfigError as error:
            pytest.skip(str(error))
        yield server


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A SeaweedFS for the whole session."""
    with _or_skip(running_seaweedfs(tmp_path_factory.mktemp("seaweedfs"))) as server:
        yield server


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A moto server for the whole session."""
    with _or_skip(running_moto(tmp_path_factory.mktemp("moto"))) as server:
        yield server


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Server:
    """The server of the session: the one that S3_ENDPOINT names, else a SeaweedFS of our own."""
    server: Server = given_server() or request.getfixturevalue("seaweedfs")
    return server


@pytest.fixture(scope="session")
def s3(server: Server) -> Iterator[Any]:
    """A boto3 client of the server: the second witness, which knows nothing of ucfuse."""
    with closing(server.client()) as client:
        yield client


@pytest.fixture
def fresh_bucket(s3: Any) -> str:
    """The name of an empty bucket of the test's own."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    s3.create_bucket(Bucket=name)
    return name
