"""`ucfuse mount`: check what was asked for, start the daemon, return once the mount is usable."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from ucfuse.cli import default_paths
from ucfuse.cli.catalog_options import TOKEN_VARIABLE
from ucfuse.cli.launch import launch
from ucfuse.cli.logs import log_to_stderr
from ucfuse.cli.mount_request import MountRequest, parse_mount
from ucfuse.cli.notify import Notifier, take_notifier
from ucfuse.config import MountConfig, StoreOptions
from ucfuse.kernel.mountpoint import prepare

__all__ = ["DEV_ADDRESS", "reach_embedded", "run"]

DEV_ADDRESS = "dev:"

# Of the user's own settings, those that would send the embedded store's credentials astray.
FOREIGN_SETTINGS = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN")


def run(arguments: Sequence[str]) -> int:
    """Mount; return when the mount is usable, or with `--foreground` when it is gone."""
    request = parse_mount(arguments, os.environ)
    os.environ.pop(TOKEN_VARIABLE, None)  # whom we start needs no token
    config = replace(request.config, mountpoint=prepare(request.config.mountpoint))
    default_paths.make_private(config.state_dir)
    notifier = take_notifier(os.environ)
    serve = partial(_serve, replace(request, config=config), notifier)
    if request.foreground:
        log_to_stderr(config.log_level)
        return serve(_nobody_waits)
    log_file = _log_path(config)
    default_paths.make_private(log_file.parent)
    return launch(serve, log_file, config.log_level)


def _serve(request: MountRequest, notifier: Notifier, on_usable: Callable[[], None]) -> int:
    # Imported here: these start threads, which would not survive the fork of a daemon.
    from ucfuse.mount import serve

    def tell_usable() -> None:
        notifier.tell("READY=1", f"MAINPID={os.getpid()}", f"STATUS={request.config.label}")
        on_usable()

    runtime_dir = default_paths.runtime_dir(os.environ)
    default_paths.make_private(runtime_dir)
    if not request.dev:
        return serve(request.config, runtime_dir, tell_usable)
    with _embedded_store(request.config) as config:
        return serve(config, runtime_dir, tell_usable)


@contextmanager
def _embedded_store(config: MountConfig) -> Iterator[MountConfig]:
    """Have the store of `--dev` for the block, and yield the configuration that reaches it."""
    from ucfuse.dev_store import shared_store  # as above

    data_dir = default_paths.data_dir(os.environ)
    log_path = config.state_dir / "logs" / "embedded-store.log"
    default_paths.make_private(log_path.parent)
    with shared_store(data_dir, str(config.source.bucket), log_path) as endpoint_url:
        options = reach_embedded(endpoint_url, f"{DEV_ADDRESS}{data_dir}")
        yield replace(config, store=options)


def reach_embedded(endpoint_url: str, address: str) -> StoreOptions:
    """Return what reaches the store of `--dev`, and use its credentials in this process.

    Its port is another one each time: `address` names it by its data.
    """
    from ucfuse.embedded import ACCESS_KEY, REGION, SECRET_KEY  # as above

    for name in FOREIGN_SETTINGS:
        os.environ.pop(name, None)
    os.environ["AWS_ACCESS_KEY_ID"] = ACCESS_KEY
    os.environ["AWS_SECRET_ACCESS_KEY"] = SECRET_KEY
    return StoreOptions(endpoint_url=endpoint_url, region=REGION, address=address)


def _log_path(config: MountConfig) -> Path:
    """Return the log of this mount point, by a name that people recognise."""
    name = str(config.mountpoint).strip("/").replace("/", "-") or "root"
    return config.state_dir / "logs" / f"{name}.log"


def _nobody_waits() -> None:
    sys.stdout.flush()
