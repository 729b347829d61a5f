"""kill -9 of the daemon under writers: what they were told is done is there after the next mount.

Writers log outside the mount what they are about to be told and what they were told. After each
kill the place is mounted again, and every object is compared through boto3 with the log: it has
the last contents that were reported as done, or whole contents whose close or fsync was under way
when the daemon died. Never less, never a mix, never what was neither closed nor synced.
"""

import hashlib
import json
import os
import random
import shutil
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.servers.server import Server
from ucfuse.writing.records import LOG_NAME, read_log

from .harness import Mount, MountVolume
from .phases import Phase, PhaseProxy
from .programs import Conversation, eventually
from .witness import Bucket

WRITER = str(Path(__file__).with_name("crash_writer.py"))
WRITER_COUNT = 3
KILLS_PER_RUN = 20
LONG_RUNS = 10
# Until a request of the kind that the daemon is to die in comes by.
PHASE_PATIENCE_S = 2.0

hit: Counter[Phase] = Counter()
"""Phases that were under way at a kill, in all runs of the session."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "run_number" in metafunc.fixturenames:
        runs = LONG_RUNS if metafunc.config.getoption("--long") else 1
        metafunc.parametrize("run_number", range(runs))


@pytest.fixture
def proxy(server: Server) -> Iterator[PhaseProxy]:
    with PhaseProxy(server.address) as watched:
        yield watched


@dataclass
class Told:
    """What one file may be, from what its writer was told. None: no such object."""

    done: str | None = None
    under_way: list[str | None] = field(default_factory=list)

    def allowed(self) -> set[str | None]:
        return {self.done, *self.under_way}

    def is_now(self, md5: str | None) -> None:
        self.done, self.under_way = md5, []


def told_in(log_path: Path) -> tuple[dict[str, Told], list[tuple[str, str]]]:
    """Return what each file may be, and the renames that were under way."""
    files: defaultdict[str, Told] = defaultdict(Told)
    renames: list[tuple[str, str]] = []
    for line in log_path.read_text().splitlines():
        said: dict[str, Any] = json.loads(line)
        name = said["name"]
        match said["event"]:
            case "closing":
                files[name].under_way.append(said["md5"])
            case "done":
                files[name].is_now(said["md5"])
            case "renaming":
                renames.append((name, said["to"]))
                files[name].under_way.append(None)
                files[said["to"]].under_way.append(files[name].done)
            case "renamed":
                renames.remove((name, said["to"]))
                files[said["to"]].is_now(files[name].done)
                files[name].is_now(None)
            case "removing":
                files[name].under_way.append(None)
            case "removed":
                files[name].is_now(None)
    return files, renames


def stored(bucket: Bucket) -> dict[str, str]:
    """Return the MD5 of every object."""
    found = {}
    pages = bucket.client.get_paginator("list_objects_v2").paginate(
        Bucket=bucket.name, Prefix=bucket.prefix
    )
    for page in pages:
        for entry in page.get("Contents", []):
            name = entry["Key"].removeprefix(bucket.prefix)
            if name:  # else the marker of the directory itself
                found[name] = hashlib.md5(bucket.get(name)).hexdigest()
    return found


def sessions(mount: Mount) -> set[Path]:
    """Return the directories in which the mount's daemons, dead or alive, keep their files."""
    return {log.parent for log in mount.state_dir.rglob(LOG_NAME)}


def bytes_at_risk(session: Path) -> int:
    """Return how many bytes lay in staging that no store had for certain when the daemon died."""
    return sum((session / name).stat().st_size for name in read_log(session).records)


class Round:
    """One daemon's life under writers, its death, and what is there afterwards."""

    def __init__(self, mount: Mount, bucket: Bucket, logs: Path, seed: str) -> None:
        self._mount = mount
        self._bucket = bucket.below(seed)
        self._rng = random.Random(seed)
        self._logs = [logs / f"{seed}-{number}.log" for number in range(WRITER_COUNT)]
        self._root = mount.path / seed
        [self._session] = eventually("one session", lambda: sessions(mount))

    def play(self, proxy: PhaseProxy) -> int:
        """Kill the daemon at a random moment; return how many bytes were at risk then."""
        self._root.mkdir()
        writers = [
            Conversation([sys.executable, WRITER, str(self._root), str(log), log.stem])
            for log in self._logs
        ]
        try:
            proxy.wait_for(self._rng.choice(list(Phase)), PHASE_PATIENCE_S)
            self._linger()
            self._require_alive(writers)
            under_way = proxy.under_way()
            os.kill(self._mount.pid, 9)
            hit.update(under_way)
            self._mount.kill()
            for writer in writers:
                writer.process.wait(30)
        finally:
            for writer in writers:
                writer.__exit__()
        return bytes_at_risk(self._session)

    def _linger(self) -> None:
        """Let a moment pass: nothing but chance says when the daemon dies."""
        time.sleep(self._rng.choice([0.0, 0.003, 0.03]) * self._rng.random())

    def _require_alive(self, writers: list[Conversation]) -> None:
        for writer, log in zip(writers, self._logs, strict=True):
            assert writer.process.poll() is None, log.read_text()[-2000:]

    def compare(self) -> None:
        """Assert that the store has what the writers were told, and nothing else."""
        found = stored(self._bucket)
        expected: set[str] = set()
        for log in self._logs:
            files, renames = told_in(log)
            expected |= set(files)
            for name, told in files.items():
                assert found.get(name) in told.allowed(), self._story(log, name, found.get(name))
            for name, to in renames:
                assert name in found or to in found, self._story(log, name, None)
        assert set(found) <= expected, "names that no writer spoke of"

    def _story(self, log: Path, name: str, found: str | None) -> str:
        lines = [line for line in log.read_text().splitlines() if f'"{name}"' in line]
        return f"{name} is {found}\n" + "\n".join(lines) + f"\n{self._mount.log()[-3000:]}"

    def clear(self) -> None:
        """Remove what is left of this round, so that the next ones stay fast."""
        shutil.rmtree(self._session, ignore_errors=True)  # there only if something was kept
        for name in stored(self._bucket):
            self._bucket.client.delete_object(
                Bucket=self._bucket.name, Key=self._bucket.prefix + name
            )


@pytest.mark.promise("P41")
@pytest.mark.timeout(600)
def test_nothing_that_was_told_is_lost_or_mixed(
    mount_volume: MountVolume, proxy: PhaseProxy, tmp_path: Path, run_number: int
) -> None:
    seed = os.environ.get("UCFUSE_CRASH_SEED") or os.urandom(4).hex()
    print(f"UCFUSE_CRASH_SEED={seed}")  # noqa: T201
    mount = mount_volume(over={"AWS_ENDPOINT_URL": proxy.url})
    at_risk = 0
    for number in range(KILLS_PER_RUN):
        this = Round(mount, mount.bucket, tmp_path, f"{seed}-{number}")
        at_risk += this.play(proxy)
        mount.start()
        this.compare()
        this.clear()
    assert at_risk, "no kill came while anything was at risk"
    print(f"{at_risk >> 20} MiB were at risk; {dict(hit)}")  # noqa: T201


@pytest.mark.long
def test_the_daemon_died_in_every_phase() -> None:
    """Says nothing unless it runs after the kills above."""
    missed = set(Phase) - set(hit)
    assert not missed, f"{missed}; hit: {hit}"
