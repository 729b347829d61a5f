"""`ucfuse status --file PATH`: what a mount knows of one file.

The file is held by a descriptor that opens nothing, so its inode stays while the daemon is asked.
Another process holds it: a daemon that hangs would not let this one go, not even by Ctrl-C.
"""

import errno
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ucfuse.cli import default_paths
from ucfuse.cli.client import Silent, ask, mount_above, unanswered
from ucfuse.errors import ConfigError
from ucfuse.registry import MountRecord, find_record, list_records
from ucfuse.units import duration_text, size_text

__all__ = ["show"]

# A mount gives a lookup up by itself before (`--metadata-timeout`, unless that is set longer).
HOLD_TIMEOUT_S = 60.0

# Exits with the errno: texts of error messages are not for programs. Ends with its standard input.
HOLDER = """import os, sys
try:
    held = os.open(sys.argv[1], os.O_PATH)
    told = b"%d %s" % (os.fstat(held).st_ino, os.fsencode(os.readlink(f"/proc/self/fd/{held}")))
except OSError as cause: sys.exit(cause.errno)
os.write(1, told)
os.close(1)
sys.stdin.read()"""


def show(path: Path, *, as_json: bool) -> int:
    """Print it; return 0. Raises `ConfigError`: the file is in no mount; `OSError`: nor here."""
    runtime_dir = default_paths.runtime_dir(os.environ)
    _require_answers(runtime_dir, path)
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


def _require_answers(runtime_dir: Path, path: Path) -> None:
    """Raise `ConfigError` if the daemon of the mount that the path is on does not answer."""
    mountpoint = mount_above(Path(os.path.abspath(path)))
    record = mountpoint and find_record(runtime_dir, str(mountpoint))
    if not record:
        return
    try:
        next(ask(runtime_dir, record, "status"), None)
    except Silent as error:
        raise unanswered(record) from error


@contextmanager
def _held(path: Path) -> Iterator[tuple[int, Path]]:
    """Yield inode number and path without symbolic links. Raises `OSError`."""
    holder = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # or Ctrl-C would reach it too
    )
    try:
        assert holder.stdout is not None
        if not select.select([holder.stdout], [], [], HOLD_TIMEOUT_S)[0]:
            raise TimeoutError(errno.ETIMEDOUT, "its file system does not answer", str(path))
        number, _, real_path = holder.stdout.read().partition(b" ")
        if not real_path:
            code = holder.wait()
            raise OSError(code, os.strerror(code), str(path))
        yield int(number), Path(os.fsdecode(real_path))
    finally:
        holder.kill()  # and do not wait: a process that waits for a daemon may not be killable


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
