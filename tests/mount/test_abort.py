"""`ucfuse abort`: what waits for a store that does not answer ends at once."""

import errno
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.servers.server import Server

from .faultproxy import FaultProxy, Link
from .harness import Mount, MountVolume, ucfuse
from .programs import eventually, is_readable, start_python

# Far longer than any test waits: what ends, ends by the abort.
PATIENT = ("--metadata-timeout=5m", "--read-timeout=5m", "--commit-timeout=5m")

MountThrough = Callable[..., Mount]


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    """A link to the store that the test can break; the witness goes around it."""
    with FaultProxy(server.address) as link:
        yield link


@pytest.fixture
def patient_mount(proxy: FaultProxy, mount_volume: MountVolume) -> MountThrough:
    over = {"AWS_ENDPOINT_URL": proxy.url}
    return lambda *options: mount_volume(*PATIENT, *options, over=over)


@pytest.fixture
def patient(patient_mount: MountThrough) -> Mount:
    """A mount that asks the store about every name."""
    return patient_mount("--metadata-ttl=0s")


def call_when_told(kind: str, path: str) -> None:
    """Make one system call after a line from outside; say with which errno it ended."""
    import os
    import sys

    flags = {"close": os.O_WRONLY | os.O_CREAT, "read": os.O_RDONLY}.get(kind)
    descriptor = os.open(path, flags) if flags is not None else -1
    if kind == "close":
        os.write(descriptor, b"precious")
    calls = {
        "close": lambda: os.close(descriptor),
        "read": lambda: os.pread(descriptor, 10, 30 << 20),
        "open": lambda: os.open(path, os.O_RDONLY),
        "stat": lambda: os.stat(path),
        "listdir": lambda: os.listdir(path),
        "truncate": lambda: os.truncate(path, 0),
        "unlink": lambda: os.unlink(path),
    }
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    try:
        calls[kind]()
        number = 0
    except OSError as error:
        number = error.errno or 0
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def abort(mount: Mount) -> str:
    done = ucfuse("abort", mount.path, environment=mount.environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


class Calls:
    """Programs that each make one call, which waits until the mount is told to end it."""

    def __init__(self, mount: Mount, *wanted: tuple[str, str]) -> None:
        self._mount = mount
        self._stack = ExitStack()
        self._programs = [
            self._stack.enter_context(start_python(call_when_told, kind, mount.path / name))
            for kind, name in wanted
        ]
        for program in self._programs:
            assert program.hear() == "ready"

    def begin(self) -> None:
        for program in self._programs:
            program.say()

    def end_by_abort(self) -> list[int]:
        """Return the errnos. Of itself none of the calls would end within the test."""
        left, numbers = list(self._programs), []
        while left:
            abort(self._mount)
            if is_readable(left[0].process.stdout, 0.2):
                program = left.pop(0)
                numbers.append(int(program.hear()))
                program.end()
        self._stack.close()
        return numbers


@pytest.mark.promise("P45")
def test_abort_ends_a_close_and_keeps_its_bytes(patient: Mount, proxy: FaultProxy) -> None:
    """README, abort: the program gets EIO, `recover` the bytes, and the mount goes on."""
    calls = Calls(patient, ("close", "f"))
    proxy.become(Link.STALLS)
    calls.begin()
    eventually("the close", lambda: patient.status()["fuse_requests"].get("FLUSH"))

    assert calls.end_by_abort() == [errno.EIO]

    done = ucfuse(
        *("recover", "--state-dir", patient.state_dir, "list", "--json"),
        environment=patient.environment,
    )
    (kept,) = json.loads(done.stdout)
    assert kept["key"].endswith("/f")
    assert "ended on request" in kept["why"]
    assert not patient.bucket.has("f")
    proxy.become(Link.PASSES)
    (patient.path / "g").write_bytes(b"goes on")
    assert patient.bucket.get("g") == b"goes on"


@pytest.mark.promise("P45")
def test_abort_ends_opens_reads_and_questions_about_names(
    patient: Mount, proxy: FaultProxy
) -> None:
    """README, abort: whatever waits; EIO where data moves, else EAGAIN."""
    patient.bucket.put("small", b"x")
    patient.bucket.put("large", b"x" * (40 << 20))
    calls = Calls(patient, ("read", "large"), ("open", "small"), ("stat", "none"), ("listdir", ""))
    proxy.become(Link.STALLS)
    calls.begin()

    assert calls.end_by_abort() == [errno.EIO, errno.EAGAIN, errno.EAGAIN, errno.EAGAIN]

    proxy.become(Link.PASSES)
    assert (patient.path / "small").read_bytes() == b"x"


def test_abort_ends_every_one_of_many_that_wait_for_each_other(
    patient_mount: MountThrough, proxy: FaultProxy
) -> None:
    """Changes of one name run one after another; none of them is left to wait anew."""
    patient = patient_mount("--metadata-ttl=5m")
    (patient.path / "f").write_bytes(b"x")
    (patient.path / "f").stat()
    calls = Calls(patient, *[("truncate", "f")] * 5, *[("unlink", "f")] * 3)
    proxy.become(Link.STALLS)
    calls.begin()

    assert all(calls.end_by_abort())

    proxy.become(Link.PASSES)
