"""Mounts as the system makes them: mount(8), a line of fstab, systemd's notification."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .harness import ROOT, is_mounted
from .programs import eventually

# In a mount namespace of its own, /usr/sbin (and /sbin, which leads there) has one more program:
# mount(8) looks for helpers nowhere else. The mount is gone with the namespace; the daemon is not.
WITH_HELPER = """
set -e
mount -t overlay overlay -o "lowerdir=$1:/usr/sbin" /usr/sbin
shift
exec "$@"
"""


@pytest.fixture
def system(scratch: Path, environment: dict[str, str]) -> "System":
    if os.geteuid() != 0:
        pytest.skip("only root mounts by mount(8)")
    work = scratch / f"system-{os.urandom(3).hex()}"
    for name in ("mnt", "sbin"):
        (work / name).mkdir(parents=True)
    helper = work / "sbin/mount.ucfuse"
    helper.write_text(f'#!/bin/sh\nexec {sys.executable} -m ucfuse.cli.mounthelper "$@"\n')
    helper.chmod(0o755)
    return System(work, environment)


class System:
    """A machine on which the helper is installed."""

    def __init__(self, work: Path, environment: dict[str, str]) -> None:
        self.work = work
        self.mnt = work / "mnt"
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}

    def run(self, script: str) -> "subprocess.CompletedProcess[str]":
        """Run a script on it; $MNT is the mount point."""
        return subprocess.run(
            [
                *("unshare", "--mount", "sh", "-c", WITH_HELPER, "sh", str(self.work / "sbin")),
                *("sh", "-ec", script),
            ],
            env={**self._environment, "MNT": str(self.mnt)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


END = f'\n{sys.executable} -m ucfuse umount "$MNT"'


def test_mount_t_ucfuse_works(system: System) -> None:
    """README, mount.ucfuse."""
    done = system.run(
        'mount -t ucfuse -o _netdev,metadata_ttl=5s memory: "$MNT"\n'
        'echo hello > "$MNT/f"; cat "$MNT/f"; findmnt -n -o FSTYPE "$MNT"' + END
    )
    assert (done.returncode, done.stdout.split()) == (0, ["hello", "fuse.ucfuse"]), done.stderr


def test_a_line_of_fstab_works(system: System) -> None:
    """README, mount.ucfuse: /etc/fstab."""
    fstab = system.work / "fstab"
    fstab.write_text(f"memory: {system.mnt} ucfuse _netdev,noauto,ro,x-systemd.automount 0 0\n")
    done = system.run(f'mount -T {fstab} "$MNT"; touch "$MNT/f" 2>&1 || true; umount "$MNT"\n')
    assert done.returncode == 0, done.stderr
    assert "Read-only file system" in done.stdout


def test_what_cannot_be_mounted_is_one_line_and_mounts_exit_code(system: System) -> None:
    done = system.run('mount -t ucfuse -o nonsense memory: "$MNT"')
    assert done.returncode == 32
    (line,) = done.stderr.splitlines()
    assert "-o nonsense: no such option" in line
    done = system.run('mount -t ucfuse memory: "$MNT/missing"')
    assert done.returncode == 32, done.stderr


def test_a_daemon_tells_systemd_when_programs_can_work(
    scratch: Path, environment: dict[str, str]
) -> None:
    """README, systemd: Type=notify."""
    work = scratch / f"notify-{os.urandom(3).hex()}"
    mnt = work / "mnt"
    mnt.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(work / "notify"))
        systemd.settimeout(30)
        daemon = subprocess.Popen(
            [sys.executable, "-m", "ucfuse", "mount", "--foreground", "memory:", mnt],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                **environment,
                "NOTIFY_SOCKET": str(work / "notify"),
            },
            stderr=subprocess.DEVNULL,
        )
        try:
            message = systemd.recv(4096).decode().splitlines()
            assert "READY=1" in message
            assert f"MAINPID={daemon.pid}" in message
            (mnt / "f").write_bytes(b"usable")
        finally:
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(30) == 0
    eventually("the mount to go", lambda: not is_mounted(mnt))
