"""Where the programs `ucfuse` and `mount.ucfuse` begin; `python -m ucfuse` is the former.

Ctrl-C may come while all that they need is still being imported: that is one line too.
"""

import sys

__all__ = ["main", "mount_ucfuse"]

EXIT_INTERRUPTED = 130
EXIT_MOUNT_INTERRUPTED = 8  # in mount(8)'s words


def main() -> int:
    """Run the command of `sys.argv` and return its exit code."""
    try:
        from ucfuse.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("ucfuse: interrupted before it began\n")
        return EXIT_INTERRUPTED


def mount_ucfuse() -> int:
    """Mount as mount(8) asks for it and return the exit code."""
    try:
        from ucfuse.cli.mounthelper import main as run

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("mount.ucfuse: interrupted before it began\n")
        return EXIT_MOUNT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
