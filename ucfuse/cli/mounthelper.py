"""`mount.ucfuse`: what `mount -t ucfuse` and a line of /etc/fstab run.

mount(8) finds it as /sbin/mount.ucfuse and calls it with source, mount point and `-o` options.
Those that are options of `ucfuse mount` are passed on: `metadata_ttl=5s` is `--metadata-ttl=5s`,
and `xattr` is `--xattr`. Those that are meant for others are left out. Exit codes are mount(8)'s.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence

from ucfuse.cli import mount_request, mounting, options
from ucfuse.cli.complaints import line_of
from ucfuse.errors import ConfigError

__all__ = ["main", "translated"]

EXIT_USAGE = 1
EXIT_INTERRUPTED = 8
EXIT_FAILED = 32

# For mount(8), systemd and those who read fstab; and what holds for every FUSE mount of root.
FOR_OTHERS = frozenset((
    "rw", "defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "nofail",
    "_netdev", "async", "sync", "dirsync", "atime", "noatime", "diratime", "nodiratime",
    "relatime", "norelatime", "strictatime", "nostrictatime", "lazytime", "nolazytime",
    "nodev", "nosuid", "exec", "silent", "loud",
))  # fmt: skip
FOR_OTHERS_BEGIN = ("x-", "X-", "comment=", "helper=", "uhelper=")
SPELLED_OTHERWISE = {"ro": "--read-only", "noexec": "--file-mode=644"}
# These say what is mounted; the first field of an fstab line is then of no meaning.
INSTEAD_OF_SOURCE = ("--volumes", "--catalog-url", "--dev")
# A daemon that stays in the foreground would hold mount(8) up for ever.
REFUSED = ("--foreground",)


def main(arguments: Sequence[str] | None = None) -> int:
    """Mount, and return mount(8)'s exit code."""
    try:
        return _mount(_parser().parse_args(arguments))
    except SystemExit as usage:  # argparse's 2 means something else to mount(8)
        return EXIT_USAGE if usage.code else 0
    except (ConfigError, OSError) as error:
        print(f"mount.ucfuse: {line_of(error)}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("mount.ucfuse: interrupted; nothing was mounted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _mount(asked: argparse.Namespace) -> int:
    given = [option for text in asked.options for option in text.split(",") if option]
    if asked.read_only:
        given.append("ro")
    ours = list(translated(given, is_sloppy=asked.sloppy))
    has_source = not any(option.partition("=")[0] in INSTEAD_OF_SOURCE for option in ours)
    places = [asked.source, asked.target] if has_source else [asked.target]
    if asked.fake:
        mount_request.parse_mount([*ours, *places], os.environ)
        return 0
    return EXIT_FAILED if mounting.run([*ours, *places]) else 0


def translated(given: Sequence[str], *, is_sloppy: bool = False) -> Iterator[str]:
    """Yield the options of `ucfuse mount` that mean the same. Raises `ConfigError`."""
    known = options.names(os.environ)
    for option in given:
        name, equals, value = option.partition("=")
        own = "--" + name.replace("_", "-")
        if option in FOR_OTHERS or option.startswith(FOR_OTHERS_BEGIN):
            continue
        if option in SPELLED_OTHERWISE:
            yield SPELLED_OTHERWISE[option]
        elif own in known and own not in REFUSED:
            yield f"{own}{equals}{value}"
        elif option == "remount":
            raise ConfigError("cannot be remounted with other options; unmount it, then mount it")
        elif not is_sloppy:
            raise ConfigError(f"-o {option}: no such option; see `ucfuse mount --help`")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mount.ucfuse",
        description="Mount as mount(8) asks for it. OPTIONS are those of `ucfuse mount`, without"
        " the dashes in front; those that are not for file systems are left out.",
        allow_abbrev=False,
    )
    parser.add_argument("source", metavar="SOURCE", help="s3://BUCKET[/PREFIX]")
    parser.add_argument("target", metavar="MOUNTPOINT")
    parser.add_argument("-o", dest="options", action="append", default=[], metavar="OPTIONS")
    parser.add_argument("-r", dest="read_only", action="store_true", help="read-only")
    parser.add_argument("-f", dest="fake", action="store_true", help="check, but do not mount")
    parser.add_argument("-s", dest="sloppy", action="store_true", help="leave out what is unknown")
    for letter in "nvw":  # no mtab, verbose, read and write: nothing to do
        parser.add_argument(f"-{letter}", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-t", dest="type", help=argparse.SUPPRESS)
    parser.add_argument("-N", dest="namespace", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
