"""`ucfuse status --file PATH`: what a mount knows of one file.

The file is held by a descriptor that opens nothing, so its inode stays while the daemon is asked.
"""

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ucfuse.cli import default_paths
from ucfuse.cli.client import Silent, ask, unanswered
from ucfuse.errors import ConfigError
from ucfuse.registry import MountRecord, list_records
from ucfuse.units import duration_text, size_text

__all__ = ["show"]


def show(path: Path, *, as_json: bool) -> int:
    """Print it; return 0. Raises `ConfigError`: the file is in no mount, or is not there."""
    runtime_dir = default_paths.runtime_dir(os.environ)
    with _held(path) as (number, real_path):
        record = _mount_of(runtime_dir, real_path)
        try:
            answer = next(ask(runtime_dir, record, "file", inode=number), {})
        except Silent as error:
            raise unanswered(record) from error
    if "error" in answer:
        raise ConfigError(f"{path}: {answer['error']}")
    print(json.dumps(answer, indent=2) if as_json else "\n".join(_text_of(path, answer)))
    return 0


@contextmanager
def _held(path: Path) -> Iterator[tuple[int, Path]]:
    """Yield inode number and path without symbolic links."""
    try:
        descriptor = os.open(path, os.O_PATH)
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            raise ConfigError(
                f"{path}: the daemon of its mount has died; `ucfuse status` names it"
            ) from error
        raise ConfigError(f"{path}: {error.strerror}") from error
    try:
        yield os.fstat(descriptor).st_ino, Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    finally:
        os.close(descriptor)


def _mount_of(runtime_dir: Path, path: Path) -> MountRecord:
    above = [
        record for record in list_records(runtime_dir) if path.is_relative_to(record.mountpoint)
    ]
    if not above:
        raise ConfigError(f"{path}: in no mount of yours; `ucfuse status` lists them")
    return max(above, key=lambda record: len(record.mountpoint))


def _text_of(path: Path, answer: Mapping[str, Any]) -> Iterator[str]:
    yield str(path)
    yield f"  object     {answer['source'] or 'none: a directory above volumes'}"
    yield f"  version    {answer['etag'] or 'none'}"
    yield f"  size       {size_text(answer['size'])}"
    if not answer["has_name"]:
        yield "  name       means another version by now"
    if answer["handle_count"]:
        yield f"  open       {answer['handle_count']} times"
    if file := answer["uncommitted"]:
        why = f": {file['error']}" if file["error"] else ""
        yield f"  to commit  {size_text(file['bytes'])}, for {duration_text(file['age_s'])}{why}"
