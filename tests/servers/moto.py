"""moto: a second implementation of S3, with errors of its own."""

import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from tests.servers.server import HOST, Server, free_port
from ucfuse import embedded
from ucfuse.errors import ConfigError

__all__ = ["running_moto"]

START_TIMEOUT_S = 60.0


@contextmanager
def running_moto(work: Path) -> Iterator[Server]:
    """Run a server that keeps everything in memory. Raises `ConfigError` if it cannot start."""
    program = shutil.which("moto_server", path=sysconfig.get_path("scripts"))
    if program is None:
        raise ConfigError("`moto_server` is not installed: pip install 'ucfuse[test]'")
    port, log_path = free_port(), work / "moto.log"
    command = [sys.executable, program, "-H", HOST, "-p", str(port)]
    process = embedded.spawn_bound(command, log_path=log_path)
    try:
        server = Server("moto", f"http://{HOST}:{port}", "testing", "testing")
        _wait_until_ready(server, log_path)
        yield server
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(server: Server, log_path: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _answers(server):
        if time.monotonic() > deadline:
            raise ConfigError(f"moto_server does not answer: see {log_path}")
        time.sleep(0.1)


def _answers(server: Server) -> bool:
    with closing(server.client()) as client:
        try:
            client.list_buckets()
        except (BotoCoreError, ClientError):
            return False
    return True
