"""One store of `mount --dev` for all its mounts: it runs as long as one of them does.

Every such mount holds a shared lock on the file `users` beside the store's data. The first starts
a process that keeps the store, and holds `keeper` while it lives; it waits for `users` to be free
of locks, which the kernel also sees to when a daemon is killed, and then stops the store. Who
comes while it stops waits for that, and starts another one.

Concurrency: everything blocks, with a deadline; only file locks are shared.
"""

import fcntl
import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from ucfuse import embedded
from ucfuse.errors import ConfigError

__all__ = ["shared_store"]

T = TypeVar("T")

# A store that stops may take as long, and one that starts longer.
PATIENCE_S = embedded.START_TIMEOUT_S + embedded.STOP_PATIENCE_S
PAUSE_S = 0.05
ANSWER_TIMEOUT_S = 2.0
READY = "ready "


@contextmanager
def shared_store(data_dir: Path, bucket: str, log_path: Path) -> Iterator[str]:
    """Yield the endpoint of the store in `data_dir`, which runs for the block; has `bucket`.

    The last who leaves waits for its end. Raises `ConfigError`.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    users = _open(data_dir / "users")
    try:
        if _until(lambda: _try_lock(users, fcntl.LOCK_SH)) is None:
            raise ConfigError(f"{data_dir}: its store does not end; see {log_path}")
        yield _find_or_start(data_dir, bucket, log_path)
        is_last = _try_lock(users, fcntl.LOCK_EX)
    finally:
        os.close(users)
    if is_last:
        keeper = _open(data_dir / "keeper")
        _until(lambda: _try_lock(keeper, fcntl.LOCK_EX))
        os.close(keeper)


def _find_or_start(data_dir: Path, bucket: str, log_path: Path) -> str:
    lock = _open(data_dir / "keeper")
    try:

        def attempt() -> str | None:
            if _try_lock(lock, fcntl.LOCK_EX):
                return _start_keeper(data_dir, bucket, log_path, lock)
            return _running(data_dir)

        endpoint_url = _until(attempt)
    finally:
        os.close(lock)  # the lock lives on in the keeper, and ends with it
    if endpoint_url is None:
        raise ConfigError(
            f"the store in {data_dir} does not answer: unmount all mounts of it; see {log_path}"
        )
    return endpoint_url


def _running(data_dir: Path) -> str | None:
    """Return the endpoint of the store that another mount's keeper has started."""
    try:
        endpoint_url = (data_dir / "endpoint").read_text()
        address = urlsplit(endpoint_url)
        connection = http.client.HTTPConnection(address.netloc, timeout=ANSWER_TIMEOUT_S)
        try:
            connection.request("HEAD", "/")
            connection.getresponse()
        finally:
            connection.close()
    except (OSError, http.client.HTTPException):
        return None
    return endpoint_url


def _start_keeper(data_dir: Path, bucket: str, log_path: Path, lock: int) -> str:
    (data_dir / "endpoint").unlink(missing_ok=True)
    news, tell = os.pipe()
    command = [sys.executable, "-m", "ucfuse.dev_store", str(data_dir), bucket, str(log_path)]
    with open(log_path, "ab") as log:
        subprocess.Popen(
            [*command, str(tell)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=[lock, tell],
            start_new_session=True,
        )
    os.close(tell)
    with open(news) as pipe:
        message = pipe.read()
    if not message.startswith(READY):
        raise ConfigError(message or f"the embedded store could not be kept; see {log_path}")
    return message.removeprefix(READY)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _until(attempt: Callable[[], T]) -> T | None:
    """Return the first result that is true; None: there was none in time."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if result := attempt():
            return result
        time.sleep(PAUSE_S)
    return None


def _keep(data_dir: Path, bucket: str, log_path: Path, tell: int) -> int:
    """Run the store until no mount uses it; the process holds `keeper` by inheritance."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    endpoint = data_dir / "endpoint"
    with open(tell, "w") as pipe:
        try:
            store = embedded.start(data_dir, log_path=log_path)
        except ConfigError as error:
            pipe.write(str(error))
            return 1
        store.create_bucket(bucket)
        endpoint.write_text(store.endpoint_url)
        pipe.write(READY + store.endpoint_url)
    users = _open(data_dir / "users")
    fcntl.flock(users, fcntl.LOCK_EX)  # held to the end: whoever comes now waits
    endpoint.unlink(missing_ok=True)
    store.stop(keep_data=True)
    return 0


if __name__ == "__main__":
    sys.exit(_keep(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])))
