"""Every trouble with the store against every kind of work, side by side: success or the right
errno, within the deadline that the options set, and no process is left hanging.
"""

import errno
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.servers.server import Server

from .faultproxy import FaultProxy, Link
from .harness import Mount, MountVolume
from .programs import Conversation, eventually, start_python
from .requestproxy import RequestProxy, Trouble
from .witness import Bucket

METADATA_S, READ_S, COMMIT_S = 2, 3, 4
# A rename first looks its source up, and an open its name: two deadlines may follow each other.
DEADLINES_S = {
    "lookup": METADATA_S,
    "list": METADATA_S,
    "open": METADATA_S + READ_S,
    "read": READ_S,
    "write": COMMIT_S,
    "rename": METADATA_S + COMMIT_S,
    "unlink": 2 * METADATA_S,
}
# What a loaded machine adds.
SLACK_S = 5
SMALL, LARGE = os.urandom(64 << 10), os.urandom(24 << 20)
DATA_KINDS = frozenset({"GET", "PUT", "PART", "CREATE", "COMPLETE"})

AGAIN, IO, DENIED, DONE = errno.EAGAIN, errno.EIO, errno.EACCES, 0
AWAY = {
    "lookup": {AGAIN}, "list": {AGAIN}, "open": {AGAIN}, "read": {IO}, "write": {IO},
    "rename": {AGAIN}, "unlink": {AGAIN},
}  # fmt: skip
OUTCOMES: dict[str, dict[str, set[int]]] = {
    "refused": AWAY,
    "503": AWAY,
    "stall": AWAY,
    # What has no body goes through, and a change whose answer is lost may be found done.
    "cut": {**AWAY, "rename": {DONE, AGAIN}, "unlink": {DONE, AGAIN}},
    # Short answers arrive in time, or not.
    "slow": {
        **AWAY, "lookup": {DONE, AGAIN}, "list": {DONE, AGAIN}, "rename": {DONE, AGAIN},
        "unlink": {DONE, AGAIN},
    },
    "expired": {work: {DENIED} for work in AWAY},
}  # fmt: skip
TROUBLES = {
    "503": Trouble.SLOW_DOWN,
    "stall": Trouble.STALL,
    "cut": Trouble.CUT,
    "slow": Trouble.TRICKLE,
    "expired": Trouble.EXPIRED,
}


@dataclass(frozen=True)
class Shielded:
    """A mount, and the two links between it and its store."""

    mount: Mount
    link: FaultProxy
    proxy: RequestProxy

    @contextmanager
    def in_trouble(self, name: str) -> Iterator[None]:
        if name != "refused":
            with self.proxy.troubled(TROUBLES[name]):
                yield
            return
        self.link.become(Link.REFUSES)
        try:
            yield
        finally:
            self.link.become(Link.PASSES)


@contextmanager
def shielded(
    scratch: Path, environment: dict[str, str], whole: Bucket, server: Server, *options: str
) -> Iterator[Shielded]:
    with RequestProxy(server.address) as proxy, FaultProxy(("127.0.0.1", proxy.port)) as link:
        over = {**environment, "AWS_ENDPOINT_URL": link.url}
        work = Path(tempfile.mkdtemp(dir=scratch))
        # Names stay known, so that each program meets the trouble in its own request.
        options = ("--metadata-ttl=5m", *options)
        mount = Mount(whole.below(work.name), work, over, options)
        try:
            yield Shielded(mount.start(), link, proxy)
        finally:
            mount.close()
        complaints = mount.complaints()
        assert not complaints, complaints


@pytest.fixture(scope="module")
def impatient(
    scratch: Path, environment: dict[str, str], whole_bucket: Bucket, server: Server
) -> Iterator[Shielded]:
    """A mount whose deadlines are 2, 3 and 4 s."""
    options = [
        f"--{name}-timeout={seconds}s"
        for name, seconds in [("metadata", METADATA_S), ("read", READ_S), ("commit", COMMIT_S)]
    ]
    with shielded(scratch, environment, whole_bucket, server, *options) as place:
        yield place
        assert place.mount.status()["memory"]["reserved_bytes"] == 0


@pytest.fixture
def trouble_place(impatient: Shielded) -> Shielded:
    impatient.mount.watch_again()
    return impatient


def work(kind: str, directory: str) -> None:
    """Prepare, wait for the word, do one thing, and tell errno and seconds; then once more."""
    import errno
    import json
    import os
    import sys
    import time

    def path(name: str) -> str:
        return f"{directory}/{name}"

    held = []
    if kind == "read":
        held.append(os.open(path("read"), os.O_RDONLY))
        os.pread(held[0], 1, 0)
    if kind == "write":
        held += [os.open(path("write"), os.O_RDWR | os.O_CREAT) for _ in range(2)]
        os.write(held[0], b"precious" * (32 << 10))
    if kind in ("open", "rename", "unlink"):
        os.stat(path(kind))

    acts = {
        "lookup": lambda: os.stat(path("lookup")),
        "list": lambda: os.listdir(path("list")),
        "open": lambda: os.close(os.open(path("open"), os.O_RDONLY)),
        "read": lambda: os.pread(held[0], 1 << 20, 20 << 20),
        "write": lambda: os.close(held.pop(0)),
        "rename": lambda: os.rename(path("rename"), path("renamed")),
        "unlink": lambda: os.unlink(path("unlink")),
    }
    for is_repeat in (False, True):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        # Its other descriptor: what the close could not do is done now.
        act = (lambda: os.fsync(held[0])) if is_repeat and kind == "write" else acts[kind]
        began_at, code = time.monotonic(), -1
        while code == -1 or (is_repeat and code == errno.EAGAIN):  # as EAGAIN asks for
            try:
                act()
                code = 0
            except OSError as error:
                code = error.errno or -2
        sys.stdout.write(json.dumps([code, time.monotonic() - began_at]) + "\n")
        sys.stdout.flush()


def prepare(place: Bucket) -> None:
    for name in ("lookup", "open", "rename", "unlink", "list/a", "list/b"):
        place.put(name, SMALL)
    place.put("read", LARGE)


def is_waiting_in_the_kernel(pid: int) -> bool:
    """Whether a process is in uninterruptible sleep (D): it could not even be killed."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "D"


@contextmanager
def programs_at(place: Shielded, name: str) -> Iterator[dict[str, Conversation]]:
    """One program for each kind of work, ready to begin."""
    prepare(place.mount.bucket.below(name))
    with ExitStack() as stack:
        programs = {
            kind: stack.enter_context(start_python(work, kind, place.mount.path / name))
            for kind in DEADLINES_S
        }
        for program in programs.values():
            assert program.hear() == "ready"
        yield programs


def outcomes(programs: dict[str, Conversation], deadline_s: float) -> dict[str, tuple[int, float]]:
    """Let all of them act at once; return errno and seconds of each."""
    end_at = time.monotonic() + deadline_s
    for program in programs.values():
        program.say()
    told = {}
    for kind, program in programs.items():
        code, seconds = json.loads(program.hear(max(1.0, end_at - time.monotonic())))
        told[kind] = (code, seconds)
    return told


def named(told: dict[str, tuple[int, float]]) -> dict[str, str]:
    return {kind: errno.errorcode.get(code, "done") for kind, (code, _) in told.items()}


@pytest.mark.promise("P36", "P37")
@pytest.mark.parametrize("name", OUTCOMES)
def test_each_kind_of_work_ends_in_time_with_the_errno_that_tells(
    trouble_place: Shielded, name: str
) -> None:
    mount = trouble_place.mount
    with programs_at(trouble_place, name) as programs:
        with trouble_place.in_trouble(name):
            told = outcomes(programs, max(DEADLINES_S.values()) + SLACK_S)
            for kind, program in programs.items():
                assert not is_waiting_in_the_kernel(program.process.pid), kind
        wrong = {kind for kind, (code, _) in told.items() if code not in OUTCOMES[name][kind]}
        assert not wrong, named(told)
        late = {kind: s for kind, (_, s) in told.items() if s > DEADLINES_S[kind] + SLACK_S}
        assert not late, late

        for program in programs.values():
            assert program.hear() == "ready"
        again = outcomes(programs, 40)
    done_before = {kind for kind, (code, _) in told.items() if code == DONE}
    for kind, (code, _) in again.items():
        gone_by_now = kind in ("rename", "unlink") and kind in done_before
        assert code == (errno.ENOENT if gone_by_now else DONE), (kind, told, again)
    place = mount.bucket.below(name)
    assert place.get("write") == b"precious" * (32 << 10)
    assert place.get("renamed") == SMALL
    assert place.files() == {"lookup", "open", "read", "write", "renamed", "list/a", "list/b"}


@pytest.mark.promise("P38")
def test_ten_seconds_of_503_are_survived(
    scratch: Path, environment: dict[str, str], whole_bucket: Bucket, server: Server
) -> None:
    with (
        shielded(scratch, environment, whole_bucket, server) as place,
        programs_at(place, "d") as programs,
    ):
        with ExitStack() as trouble:
            trouble.enter_context(place.proxy.troubled(Trouble.SLOW_DOWN))
            mend = threading.Timer(10, trouble.close)
            mend.start()
            told = outcomes(programs, 60)
            mend.join()
        assert named(told) == dict.fromkeys(DEADLINES_S, "done")
        assert all(seconds > 5 for _, seconds in told.values()), told
        assert place.mount.bucket.below("d").get("write") == b"precious" * (32 << 10)


@pytest.mark.promise("P40")
def test_wrong_bytes_are_an_error_and_never_data(trouble_place: Shielded) -> None:
    """Uploads and files that are read in one request are verified."""
    mount = trouble_place.mount
    place = mount.bucket.below("wrong")
    place.put("f", SMALL)
    keeper = os.open(mount.path / "wrong/new", os.O_RDWR | os.O_CREAT, 0o644)
    writer = os.open(mount.path / "wrong/new", os.O_WRONLY)
    os.write(writer, SMALL)
    with trouble_place.proxy.troubled(Trouble.CORRUPT, DATA_KINDS):
        with pytest.raises(OSError, match="Input/output error"):
            (mount.path / "wrong/f").read_bytes()
        with pytest.raises(OSError, match="Input/output error"):
            os.close(writer)
        assert not place.has("new")
    os.fsync(keeper)
    os.close(keeper)
    assert place.get("new") == SMALL
    assert (mount.path / "wrong/f").read_bytes() == SMALL


@pytest.mark.promise("P39")
def test_metadata_answers_while_data_stalls(
    scratch: Path, environment: dict[str, str], whole_bucket: Bucket, server: Server
) -> None:
    with shielded(scratch, environment, whole_bucket, server) as shielded_place:
        mount, proxy = shielded_place.mount, shielded_place.proxy
        place = mount.bucket.below("d")
        place.put("large", LARGE)
        names = [f"f{number}" for number in range(40)]
        place.put_all(names, SMALL)
        fd = os.open(mount.path / "d/large", os.O_RDONLY)
        offsets = range(2 << 20, 22 << 20, 1 << 18)
        ended: list[bool] = []

        def read(offset: int) -> None:
            ended.append(os.pread(fd, 4096, offset) == LARGE[offset : offset + 4096])

        readers = [threading.Thread(target=read, args=(offset,)) for offset in offsets]
        with proxy.troubled(Trouble.STALL, DATA_KINDS):
            for reader in readers:
                reader.start()
            eventually("reads that wait", lambda: proxy.waiting_count > 4)
            before = len(ended)  # what the open had fetched already
            assert len(os.listdir(mount.path / "d")) == 41
            for name in names:
                assert os.stat(mount.path / "d" / name).st_size == len(SMALL)
            with pytest.raises(FileNotFoundError):
                os.stat(mount.path / "d/none")
            os.rename(mount.path / "d/f0", mount.path / "d/g0")
            os.unlink(mount.path / "d/f1")
            assert len(ended) == before, "metadata was as slow as the data"
        for reader in readers:
            reader.join(60)
        assert ended == [True] * len(offsets)
        os.close(fd)


def test_a_volume_that_is_away_does_not_slow_another_of_the_same_mount(
    mount_volume: MountVolume, bucket: Bucket, server: Server
) -> None:
    """More programs wait for the one than the kernel lets wait by itself; the other answers."""
    here, away = bucket.below("here"), bucket.below("away")
    names = [f"f{number}" for number in range(30)]
    here.put_all(names, SMALL)
    away.put_all(names, SMALL)
    with RequestProxy(server.address) as proxy:
        text = f'[volumes."main.default.here"]\nsource = "{here.source}"\n'
        text += f'[volumes."main.default.away"]\nsource = "{away.source}"\n'
        text += f'endpoint_url = "{proxy.url}"\n'
        mount = mount_volume(volumes=text)
        top = mount.path / "main/default"
        for name in names:
            os.stat(top / "away" / name)
        ended: list[bool] = []

        def wait_for(name: str) -> None:
            ended.append((top / "away" / name).read_bytes() == SMALL)

        waiting = [threading.Thread(target=wait_for, args=(name,)) for name in names * 2]
        with proxy.troubled(Trouble.STALL):
            for thread in waiting:
                thread.start()
            eventually("requests that wait", lambda: proxy.waiting_count > 4)
            assert sorted(os.listdir(top / "here")) == sorted(names)
            for name in names:
                assert (top / "here" / name).read_bytes() == SMALL
            (top / "here/new").write_bytes(SMALL)
            os.rename(top / "here/new", top / "here/newer")
            os.unlink(top / "here/newer")
            assert ended == [], "as slow as the volume that is away"
        for thread in waiting:
            thread.join(60)
        assert ended == [True] * len(waiting)
