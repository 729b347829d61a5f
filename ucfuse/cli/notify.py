"""Telling systemd that a mount is usable: what a unit of `Type=notify` waits for."""

import socket
from collections.abc import MutableMapping
from contextlib import suppress

__all__ = ["Notifier", "take_notifier"]

VARIABLE = "NOTIFY_SOCKET"


class Notifier:
    """Where to tell it; nowhere if nobody waits."""

    def __init__(self, address: str) -> None:
        self._address = address

    def tell(self, *lines: str) -> None:
        """Send lines like `READY=1`. Whoever does not listen any more is no reason to fail."""
        if not self._address:
            return
        # A leading @ means a name that is no path.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto("\n".join(lines).encode(), address)


def take_notifier(environment: MutableMapping[str, str]) -> Notifier:
    """Return what tells systemd. Whom we start shall not tell it: the variable goes."""
    return Notifier(environment.pop(VARIABLE, ""))
