"""`ucfuse umount`: let the daemon commit everything, unmount, and wait until it has ended."""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ucfuse.cli import default_paths
from ucfuse.cli.client import Silent, ask, named_mount, not_ours
from ucfuse.errors import ConfigError
from ucfuse.kernel.mountpoint import Health, health_of, our_mount_at, unmount
from ucfuse.registry import MountRecord, find_record, forget_record, wait_for_end
from ucfuse.units import duration_text, size_text

__all__ = ["build_parser", "run"]

# After its last commit the daemon closes its connections, and with --dev its store.
EXTRA_PATIENCE_S = 60.0
# Nobody wonders about a wait as short as this.
QUIET_WAIT_S = 2.0


def run(arguments: Sequence[str]) -> int:
    """Unmount; return 0 once the daemon has ended. Raises `ConfigError`: it is still mounted."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    target = named_mount(options.mountpoint)
    runtime_dir = default_paths.runtime_dir(os.environ)
    record = find_record(runtime_dir, str(target))
    if Path.cwd().is_relative_to(target):  # else this program would keep the mount busy
        os.chdir("/")
    if record is None or not record.may_be_running():
        _remove_dead(target)
        if record is not None:
            forget_record(runtime_dir, record)
        return 0
    if options.lazy:
        _detach(runtime_dir, record)
    else:
        _unmount_alive(runtime_dir, record)
    return 0


def _remove_dead(target: Path) -> None:
    """Take away a mount whose daemon has died. Raises `ConfigError`: there is none."""
    if our_mount_at(target) is None or health_of(target) is not Health.DEAD:
        raise not_ours(target)
    unmount(target, lazy=True)


def _unmount_alive(runtime_dir: Path, record: MountRecord) -> None:
    _ask_to_unmount(runtime_dir, record)
    _wait_for_daemon(record)


def _detach(runtime_dir: Path, record: MountRecord) -> None:
    outcome = _ask_to_unmount(runtime_dir, record, lazy=True)
    if not outcome.get("users"):
        _wait_for_daemon(record)
        return
    print(f"unmounted; still in use by process {_names_of(outcome['users'])};", end=" ")
    print(f"the daemon (pid {record.pid}) commits and ends after that")


def _ask_to_unmount(
    runtime_dir: Path, record: MountRecord, *, lazy: bool = False
) -> Mapping[str, Any]:
    """Return the daemon's last word. Raises `ConfigError`: it is still mounted."""
    outcome: Mapping[str, Any] = {}
    told = ""
    try:
        for outcome in ask(runtime_dir, record, "umount", lazy=lazy):
            if outcome.get("waiting"):
                told = _tell_waiting(outcome["waiting"], told)
    except Silent as error:
        raise ConfigError(
            f"{record.mountpoint}: its daemon (pid {record.pid}) does not answer;"
            f" `kill -9 {record.pid}`, then `ucfuse umount {record.mountpoint}`"
        ) from error
    if "unmounted" not in outcome:
        raise ConfigError(f"{record.mountpoint}: {_refusal(outcome)}")
    return outcome


def _wait_for_daemon(record: MountRecord) -> None:
    """Wait until the daemon has ended, and with it the store of `--dev`. Raises `ConfigError`."""
    if wait_for_end(record.pid, QUIET_WAIT_S):
        return
    print(f"unmounted; waiting for the daemon (pid {record.pid}) to end", flush=True)
    patience_s = record.commit_timeout_s + EXTRA_PATIENCE_S
    if not wait_for_end(record.pid, patience_s):
        raise ConfigError(
            f"{record.mountpoint}: unmounted, but its daemon (pid {record.pid}) still runs"
            f" after {duration_text(patience_s)}; see its log"
        )


def _tell_waiting(files: Sequence[Mapping[str, Any]], told: str) -> str:
    """Say what is waited for, unless that was the last thing said; return what was said."""
    first = files[0]["path"]
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    size_bytes = sum(file["bytes"] for file in files)
    line = f"waiting for {first}{more} to be committed ({size_text(size_bytes)})"
    if line != told:
        print(line, flush=True)
    return line


def _names_of(users: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{user['pid']} ({user['command']})" for user in users)


def _refusal(outcome: Mapping[str, Any]) -> str:
    if users := outcome.get("users"):
        who = _names_of(users)
        return f"busy: in use by process {who}; let it close its files or end it, then try again"
    if "unsaved" in outcome:
        files = "; ".join(f"{file['path']}: {file['error']}" for file in outcome["unsaved"])
        return f"still mounted, because not everything could be committed: {files}"
    return f"still mounted: {outcome.get('refused', 'the daemon gave no reason; see its log')}"


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = argparse.ArgumentParser(
        prog="ucfuse umount",
        description="Commit what was written, unmount, and wait until the daemon has ended.",
        allow_abbrev=False,
    )
    parser.add_argument("mountpoint", metavar="PATH", type=Path)
    parser.add_argument(
        "--lazy",
        action="store_true",
        help="at once, also while programs use it: they go on, the daemon ends after them",
    )
    return parser
