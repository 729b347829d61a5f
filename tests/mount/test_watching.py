"""What a mount tells while it works: `status --watch`, latencies, Prometheus."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

from tests.servers.server import free_port

from .harness import ROOT, Mount, MountVolume


def watching(mount: Mount, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "ucfuse", "status", "--watch", *options],
        env={**os.environ, "PYTHONPATH": str(ROOT), **mount.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_watch_shows_what_programs_do_until_ctrl_c(mount: Mount) -> None:
    """README, status --watch."""
    process = watching(mount)
    assert process.stdout is not None
    seen = ""
    for number, line in enumerate(process.stdout):
        seen += line
        # What happened between two pictures has a rate and latencies.
        if re.search(r"fuse READDIR +[1-9]\d* +[\d.]+[mu]?s +[\d.]+[mu]?s", line):
            break
        assert len(seen) < 200_000, "nothing was seen to happen"
        (mount.path / f"d{number}").mkdir()
        os.listdir(mount.path)
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=20)
    assert (process.returncode, complaints) == (0, "")
    assert str(mount.path) in seen


def test_watch_as_json_is_one_line_each_second(mount: Mount) -> None:
    process = watching(mount, "--json")
    assert process.stdout is not None
    first, second = (json.loads(process.stdout.readline()) for _ in range(2))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)

    def of(entries: list[dict[str, object]]) -> dict[str, object]:
        (entry,) = [entry for entry in entries if entry["mountpoint"] == str(mount.path)]
        return entry

    assert of(first)["pid"] == of(second)["pid"] == mount.pid


def test_status_tells_latencies_by_operation(mount: Mount) -> None:
    """README, status: `latencies`."""
    (mount.path / "f").write_bytes(b"x")
    latencies = mount.status()["latencies"]
    put, flush = latencies["store"]["PUT"], latencies["fuse"]["FLUSH"]
    assert put["count"] >= 1
    assert 0 < put["p50_s"] <= put["p99_s"]
    assert put["p50_s"] <= flush["p99_s"] * 1.5  # the close waits for the store


def test_prometheus_is_answered_on_this_machine(mount_volume: MountVolume) -> None:
    """README, --metrics-port."""
    port = free_port()
    mount = mount_volume(f"--metrics-port={port}")
    (mount.path / "f").write_bytes(b"x" * 100)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert re.search(r'^ucfuse_store_sent_bytes_total\{volume=""\} 100\.0$', text, re.MULTILINE)
    assert re.search(r'^ucfuse_fuse_request_seconds_count\{request="FLUSH"\} [1-9]', text, re.M)


def test_a_metrics_port_that_is_taken_ends_the_mount_with_one_line(
    mount_volume: MountVolume,
) -> None:
    port = free_port()
    first = mount_volume(f"--metrics-port={port}")
    target = first.path.parent / "second"
    target.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "ucfuse", "mount", f"--metrics-port={port}", "memory:", target],
        env={**os.environ, "PYTHONPATH": str(ROOT), **first.environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert f"--metrics-port {port}" in done.stderr
    assert "choose another port" in done.stderr
    assert not os.path.ismount(target)
