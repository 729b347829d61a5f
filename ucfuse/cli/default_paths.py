"""Where ucfuse keeps its files: state, the sockets of running mounts, the data of `--dev`.

Follows the XDG directories; root's state is the machine's. Reads the environment that it is given.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from ucfuse.errors import ConfigError

__all__ = ["cache_dir", "data_dir", "make_private", "runtime_dir", "state_dir"]


def state_dir(environment: Mapping[str, str]) -> Path:
    """Return the default of `--state-dir`."""
    if home := _absolute(environment, "XDG_STATE_HOME"):
        return home / "ucfuse"
    if os.geteuid() == 0:
        return Path("/var/lib/ucfuse")
    return Path.home() / ".local/state/ucfuse"


def runtime_dir(environment: Mapping[str, str]) -> Path:
    """Return the directory by which `status` and `umount` find the daemons.

    Not XDG_RUNTIME_DIR: a mount outlives the login that made it, that directory does not. And not
    below `--state-dir`, which these commands are not told.
    """
    return state_dir(environment) / "run"


def data_dir(environment: Mapping[str, str]) -> Path:
    """Return where the store of `--dev` keeps its objects."""
    home = _absolute(environment, "XDG_DATA_HOME") or Path.home() / ".local/share"
    return home / "ucfuse/dev"


def cache_dir(environment: Mapping[str, str]) -> Path:
    """Return the default of `--cache-dir`."""
    if home := _absolute(environment, "XDG_CACHE_HOME"):
        return home / "ucfuse"
    if os.geteuid() == 0:
        return Path("/var/cache/ucfuse")
    return Path.home() / ".cache/ucfuse"


def make_private(directory: Path) -> None:
    """Create the directory for this user alone, or keep it. Raises `ConfigError`."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{directory}: cannot be created: {error.strerror}; choose another with --state-dir"
        ) from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigError(f"{directory}: not writable; choose another with --state-dir")


def _absolute(environment: Mapping[str, str], name: str) -> Path | None:
    # The XDG specification says to ignore relative paths.
    value = environment.get(name, "")
    return Path(value) if value.startswith("/") else None
