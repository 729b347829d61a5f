"""Where the daemon's log goes: standard error in the foreground, else a file of bounded size."""

import logging
import os
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

__all__ = ["log_to_file", "log_to_stderr"]

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# A daemon that runs for months must not fill the disk. Chosen by feel: some 100,000 lines in all.
MAX_FILE_BYTES = 8 << 20
OLD_FILE_COUNT = 2


class _SharedLog(RotatingFileHandler):
    """A log file that is also the process's standard output and error.

    What native code prints when it dies lands beside our own lines, and moves on with them when
    the file is rotated.
    """

    def doRollover(self) -> None:  # noqa: N802 - logging's name
        super().doRollover()
        self.take_standard_streams()

    def take_standard_streams(self) -> None:
        with open(self.baseFilename, "ab") as log:
            for number in (1, 2):
                os.dup2(log.fileno(), number)


def log_to_stderr(level: str) -> None:
    """Log to the terminal, or to whoever keeps the output of a foreground mount."""
    _install(logging.StreamHandler(sys.stderr), level)


def log_to_file(path: Path, level: str) -> None:
    """Log to `path`, and send standard output and error there too. Raises `OSError`."""
    handler = _SharedLog(path, maxBytes=MAX_FILE_BYTES, backupCount=OLD_FILE_COUNT)
    handler.take_standard_streams()
    _install(handler, level)


def _install(handler: logging.Handler, level: str) -> None:
    handler.setFormatter(logging.Formatter(FORMAT))
    # The libraries below us speak up for what matters only; at `debug` they would print secrets.
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger().addHandler(handler)
    logging.getLogger("ucfuse").setLevel(level.upper())
