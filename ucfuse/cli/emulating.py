"""`--emulate`: what a mode decides for the other options of a mount."""

import argparse
import os

from ucfuse.portability import Emulation

__all__ = ["add_option", "decide_owner"]

# What programs see on Databricks' own mount, whoever they are.
EMULATED = {"uid": 65534, "gid": 65534, "file_mode": 0o777, "dir_mode": 0o777}
MOST_TTL_S = 1.0


def add_option(group: "argparse._ArgumentGroup") -> None:
    """Add `--emulate` to the options of a mount."""
    group.add_argument(
        "--emulate",
        choices=[mode.value for mode in Emulation],
        default=Emulation.POSIX.value,
        help="posix (default), or refuse what Databricks' own mount refuses: databricks (as its"
        " classic compute), serverless",
    )


def decide_owner(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Fill in owner and modes that were not given; a strict mode decides them itself."""
    mine = {"uid": os.getuid(), "gid": os.getgid(), "file_mode": 0o755, "dir_mode": 0o755}
    mode = Emulation(options.emulate)
    if mode.is_strict and options.metadata_ttl > MOST_TTL_S:
        parser.error(f"--emulate {mode.value}: --metadata-ttl is 1s at most, or leave it out")
    for name, own in mine.items():
        if getattr(options, name) is None:
            setattr(options, name, EMULATED[name] if mode.is_strict else own)
        elif mode.is_strict:
            option = name.replace("_", "-")
            parser.error(f"--emulate {mode.value} decides owner and modes; leave --{option} out")
