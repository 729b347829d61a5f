"""Programs under test: shell commands, and Python functions run in a process of their own.

A function given to `run_python` or `start_python` is sent as source text, so it must import
what it uses and take strings only. That keeps test programs readable, linted and honest: nothing
of the test process (descriptors, locks, caches) leaks into them.
"""

import errno
import inspect
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest

__all__ = [
    "Conversation",
    "assert_refuses_changes",
    "eventually",
    "fails_with",
    "run",
    "run_python",
    "shell",
    "start_python",
]

PROGRAM_DEADLINE_S = 40.0


def run(
    *command: str | Path,
    cwd: Path | None = None,
    stdin: bytes | None = None,
    expect: int | None = 0,
    deadline_s: float = PROGRAM_DEADLINE_S,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a command and return what it printed. `expect` None takes any exit code.

    What `environment` says comes on top of the environment of the tests.
    """
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=deadline_s,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})},
    )
    printed = done.stdout.decode(errors="replace")
    if expect is not None and done.returncode != expect:
        raise AssertionError(f"{command} ended with {done.returncode}, not {expect}:\n{printed}")
    return printed


def shell(script: str, *, cwd: Path | None = None, deadline_s: float = PROGRAM_DEADLINE_S) -> str:
    """Run a bash script that stops at its first failure; return what it printed."""
    return run("bash", "-euo", "pipefail", "-c", script, cwd=cwd, deadline_s=deadline_s)


def run_python(
    function: Callable[..., object],
    *arguments: str | Path,
    deadline_s: float = PROGRAM_DEADLINE_S,
) -> str:
    """Call the function in a new Python process and return what it printed."""
    return run(*_python(function, arguments), deadline_s=deadline_s)


def start_python(
    function: Callable[..., object], *arguments: str | Path, pass_fds: Sequence[int] = ()
) -> "Conversation":
    """Begin the function in a new Python process that the test talks with."""
    return Conversation(_python(function, arguments), pass_fds)


def _python(function: Callable[..., object], arguments: Sequence[str | Path]) -> list[str]:
    source = textwrap.dedent(inspect.getsource(function))
    call = f"import sys\n{function.__name__}(*sys.argv[1:])\n"
    return [sys.executable, "-I", "-S", "-c", source + call, *map(str, arguments)]


class Conversation:
    """A running program that says lines and waits for lines. Owner of the process: this object."""

    def __init__(self, command: Sequence[str], pass_fds: Sequence[int] = ()) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=pass_fds,
            start_new_session=True,
        )
        self._unread = b""

    def __enter__(self) -> "Conversation":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PROGRAM_DEADLINE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def hear(self, deadline_s: float = PROGRAM_DEADLINE_S) -> str:
        """Return the next line that the program says."""
        assert self.process.stdout is not None
        end_at = time.monotonic() + deadline_s
        while b"\n" not in self._unread:
            left_s = max(0.0, end_at - time.monotonic())
            assert is_readable(self.process.stdout, left_s), (
                f"the program said nothing for {deadline_s:.0f} s"
            )
            piece = os.read(self.process.stdout.fileno(), 65536)
            assert piece, "the program ended without saying more"
            self._unread += piece
        line, self._unread = self._unread.split(b"\n", 1)
        return line.decode()

    def say(self, line: str = "go") -> None:
        """Let the program go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def end(self, expect: int = 0, deadline_s: float = PROGRAM_DEADLINE_S) -> None:
        """Wait until the program has ended by itself."""
        assert self.process.wait(deadline_s) == expect


def is_readable(file: IO[bytes], timeout_s: float) -> bool:
    """Wait until the file has something to read. By poll: select refuses descriptors over 1023."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def eventually(what: str, condition: Callable[[], Any], deadline_s: float = 20.0) -> Any:
    """Wait until the condition holds and return its value; say what did not come about."""
    end_at = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end_at:
            raise AssertionError(f"not within {deadline_s:.0f} s: {what}")
        time.sleep(0.02)


@contextmanager
def fails_with(code: int) -> Iterator[None]:
    """Assert that the block ends in an `OSError` of exactly this errno."""
    with pytest.raises(OSError) as caught:  # noqa: PT011 - every errno is checked below
        yield
    got = caught.value.errno or 0
    assert got == code, f"{errno.errorcode.get(got, got)}, not {errno.errorcode[code]}"


def assert_refuses_changes(directory: Path, code: int) -> None:
    """Assert that each kind of change to the directory, in which a file `f` is, has this errno."""
    for change in (
        lambda: (directory / "g").write_bytes(b"x"),
        lambda: (directory / "f").write_bytes(b"x"),
        lambda: (directory / "d").mkdir(),
        lambda: (directory / "f").unlink(),
        lambda: (directory / "f").rename(directory / "g"),
        lambda: os.truncate(directory / "f", 0),
        lambda: (directory / "f").chmod(0o600),
    ):
        with fails_with(code):
            change()
    assert not os.access(directory, os.W_OK)
