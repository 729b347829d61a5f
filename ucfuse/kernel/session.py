"""One mounted session with the kernel: attach, serve, detach.

`mount` calls these in this order and owns the nursery; pyfuse3 keeps its session in module globals,
so there is one per process. `serve` and `until_usable` run as two tasks:

    attach(operations, config, mountpoint)
    try: serve() beside until_usable(mountpoint)
    finally: detach()
"""

import os
import shutil
from pathlib import Path
from urllib.parse import quote

import pyfuse3
import trio

from ucfuse.config import MountConfig
from ucfuse.errors import ConfigError
from ucfuse.kernel.mountpoint import our_mount_at
from ucfuse.kernel.tuning import tune

__all__ = ["attach", "detach", "mount_options", "serve", "until_usable"]

# While this many requests are being handled no further one is read, not even a FORGET. Background
# requests are bounded by max_background, all others by the threads of programs.
MAX_TASKS = 8192
# The first answer comes from memory. Chosen by feel; a loaded machine needs seconds.
USABLE_TIMEOUT_S = 30.0

FUSE_DEVICE = Path("/dev/fuse")
FUSE_CONF = Path("/etc/fuse.conf")


def mount_options(config: MountConfig) -> set[str]:
    """Return the options for libfuse. Without `default_permissions`: the adapter checks modes."""
    # libfuse splits options at commas and takes ASCII only.
    options = {f"fsname={quote(config.label, safe=':/@=+')}", "subtype=ucfuse"}
    if config.allow_other:
        options.add("allow_other")
    if config.read_only:
        options.add("ro")
    return options


def attach(operations: pyfuse3.Operations, config: MountConfig, mountpoint: Path) -> None:
    """Mount. Programs that touch the mount now wait until `serve` runs. Raises `ConfigError`."""
    _require_fuse()
    if config.allow_other:
        _require_user_allow_other()
    try:
        pyfuse3.init(operations, str(mountpoint), mount_options(config))
    except RuntimeError as cause:
        raise ConfigError(
            f"{mountpoint}: the kernel refused the mount; libfuse says why above"
        ) from cause


def _require_fuse() -> None:
    if not FUSE_DEVICE.exists():
        raise ConfigError(
            f"{FUSE_DEVICE}: missing; run `modprobe fuse`, or give the device to the container"
        )
    if not os.access(FUSE_DEVICE, os.R_OK | os.W_OK):
        raise ConfigError(f"{FUSE_DEVICE}: no permission; as root run: chmod 666 {FUSE_DEVICE}")
    if os.geteuid() != 0 and not shutil.which("fusermount3"):
        raise ConfigError("fusermount3: not found; install the package fuse3")


def _require_user_allow_other() -> None:
    if os.geteuid() == 0:
        return
    lines = FUSE_CONF.read_text().splitlines() if FUSE_CONF.exists() else []
    if "user_allow_other" not in (line.strip() for line in lines):
        raise ConfigError(
            f"--allow-other: {FUSE_CONF} does not allow it; add the line user_allow_other"
        )


async def serve() -> None:
    """Answer requests until the mount is taken away or `pyfuse3.terminate` is called."""
    await pyfuse3.main(max_tasks=MAX_TASKS)


async def until_usable(mountpoint: Path) -> list[str]:
    """Wait for the first answer, then tune the kernel's side; return what could not be tuned.

    Tuned before that answer, the kernel would go back to its defaults. Raises `ConfigError` when
    the mount does not answer, or somebody unmounted it meanwhile.
    """
    try:
        with trio.fail_after(USABLE_TIMEOUT_S):
            # Abandoned it holds nothing of ours, and `detach` makes the kernel end it.
            await trio.to_thread.run_sync(os.statvfs, mountpoint, abandon_on_cancel=True)
    except (OSError, trio.TooSlowError) as cause:
        raise ConfigError(
            f"{mountpoint}: mounted, but gives no answer; is the machine overloaded?"
        ) from cause
    entry = our_mount_at(mountpoint)
    if entry is None:
        raise ConfigError(f"{mountpoint}: was unmounted again; mount it once more")
    return tune(entry.device)


def detach() -> None:
    """End the session; unmounts if nobody did yet, even when in use. Call after `serve`."""
    pyfuse3.close(unmount=True)
