"""What the benchmarks beside `peers.py` share: a store with latency, and mounts of it."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peers

__all__ = ["daemon_peak_bytes", "mounted", "store"]


@contextlib.contextmanager
def store(work: Path, endpoint: str | None, latency_ms: float) -> Iterator[tuple[Any, str]]:
    """Start SeaweedFS, unless there is an endpoint, behind a proxy that makes it slow.

    Yields a client that goes around the proxy, and the endpoint for mounts.
    """
    os.environ.update(
        AWS_ACCESS_KEY_ID=peers.KEY,
        AWS_SECRET_ACCESS_KEY=peers.SECRET,
        AWS_REGION="us-east-1",
        AWS_DEFAULT_REGION="us-east-1",
    )
    started = []
    try:
        if endpoint is None:
            server, endpoint = peers.start_seaweedfs(work)
            started.append(server)
        client = peers.client(endpoint)
        _await_bucket(client)
        if latency_ms:
            lag, endpoint = peers.start_lag(endpoint, latency_ms)
            started.append(lag)
        yield client, endpoint
    finally:
        for process in reversed(started):
            peers.stop(process, 1)


def _await_bucket(client: Any) -> None:
    end = time.monotonic() + 60
    while True:  # a fresh server refuses for some seconds
        try:
            client.create_bucket(Bucket=peers.BUCKET)
            client.put_object(Bucket=peers.BUCKET, Key="ready", Body=b"")
            return
        except client.exceptions.BucketAlreadyOwnedByYou:
            return
        except Exception:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


@contextlib.contextmanager
def mounted(work: Path, endpoint: str, *options: str) -> Iterator[tuple[Path, int]]:
    """Mount the bucket with ucfuse; yields the mount point and the daemon's process id."""
    root, state = work / "mnt", work / "state"
    root.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "ucfuse", "mount", "--foreground", "--state-dir", str(state)]
    with (work / "ucfuse.log").open("a") as log:
        process = subprocess.Popen(
            [*command, "--endpoint-url", endpoint, *options, f"s3://{peers.BUCKET}", str(root)],
            stderr=log,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + 30
        while not os.path.ismount(root):
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"no mount:\n{(work / 'ucfuse.log').read_text()[-2000:]}")
            time.sleep(0.05)
        yield root, process.pid
    finally:
        subprocess.run(["umount", "-l", root], check=False, stderr=subprocess.DEVNULL)
        peers.stop(process, 20)


def daemon_peak_bytes(pid: int) -> int:
    """Return the most memory that the process ever had resident (VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no VmHWM of {pid}")
