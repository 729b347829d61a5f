"""Leaving the terminal: the command returns once the mount is usable, its daemon stays.

The process forks before any library has started a thread (threads do not survive a fork), and
waits at a pipe until its child says that the mount is usable, or why not. So this module, and all
that the command line imports before it runs, stays clear of pyfuse3, boto3 and awscrt.
"""

import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from ucfuse.cli.logs import log_to_file
from ucfuse.errors import ConfigError

__all__ = ["Serve", "launch"]

Serve = Callable[[Callable[[], None]], int]
"""Serves the mount to its end, calls the argument once it is usable, and returns the exit code."""

READY = b"ready"
EXIT_DEADLINE_S = 5.0


def launch(serve: Serve, log_file: Path, log_level: str) -> int:
    """Run `serve` in a daemon. Returns in both processes: the exit code of the one it is in.

    Raises `ConfigError` in the parent: the daemon said why it cannot serve, or died.
    """
    news, tell = os.pipe()
    child = os.fork()
    if child:
        os.close(tell)
        return _wait_until_usable(child, news, log_file)
    os.close(news)
    return _serve_detached(serve, tell, log_file, log_level)


def _wait_until_usable(child: int, news: int, log_file: Path) -> int:
    try:
        with open(news, "rb") as pipe:
            message = pipe.read()
    except KeyboardInterrupt:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)  # whoever sees the prompt again can mount again
        raise
    if message == READY:
        return 0
    if message:
        _wait_for_end(child)
        raise ConfigError(message.decode())
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    raise ConfigError(f"the daemon ended ({how}) before the mount was usable; see {log_file}")


def _wait_for_end(child: int) -> None:
    # Whoever sees the prompt again finds nothing left. The child has only to exit.
    descriptor = os.pidfd_open(child)
    try:
        select.select([descriptor], [], [], EXIT_DEADLINE_S)
    finally:
        os.close(descriptor)


def _serve_detached(serve: Serve, tell: int, log_file: Path, log_level: str) -> int:
    def tell_parent(message: bytes) -> None:
        nonlocal tell
        if tell >= 0:
            os.write(tell, message)
            os.close(tell)
            tell = -1

    try:
        _leave_terminal(log_file, log_level)
        return serve(lambda: tell_parent(READY))
    except ConfigError as error:
        tell_parent(str(error).encode())
        return 1


def _leave_terminal(log_file: Path, log_level: str) -> None:
    os.setsid()
    os.chdir("/")
    sys.stdout.flush()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    try:
        log_to_file(log_file, log_level)
    except OSError as error:
        raise ConfigError(f"{log_file}: cannot be written: {error.strerror}") from error
