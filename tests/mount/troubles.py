"""Troubles of a link to a store that last: every request is spoilt until they are mended."""

import socket
import threading
from collections.abc import Container
from dataclasses import dataclass, field
from enum import Enum, auto

from .messages import Message

__all__ = ["TRICKLE_BYTES_PER_S", "Standing", "Trouble", "damaged", "spoilt_answer"]

TRICKLE_BYTES_PER_S = 1000


class Trouble(Enum):
    """What happens to all requests until it is mended."""

    SLOW_DOWN = auto()
    """503."""
    STALL = auto()
    """No answer comes."""
    CUT = auto()
    """The connection ends in the middle of the request's body, or else of the answer's."""
    TRICKLE = auto()
    """Bodies move at 1 KB/s."""
    CORRUPT = auto()
    """A bit of the request's body, or else of the answer's, is another one."""
    EXPIRED = auto()
    """403: the credentials have expired."""
    DENIED = auto()
    """403: this identity may not do it."""


@dataclass(slots=True, eq=False)
class Standing:
    """A trouble, and the kinds of requests that it spoils (None: all)."""

    trouble: Trouble
    kinds: Container[str] | None
    is_over: threading.Event = field(default_factory=threading.Event)


def damaged(body: bytes) -> bytes:
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]


def spoilt_answer(standing: Standing, answer: Message, client: socket.socket) -> Message | None:
    """Return an answer with a wrong bit, or send it slowly or in part and end the connection."""
    head, body = answer.to_bytes()[: -len(answer.body)], answer.body
    match standing.trouble:
        case Trouble.CORRUPT:
            answer.body = damaged(body)
            return answer
        case Trouble.CUT:
            client.sendall(head + body[: len(body) // 2])
        case _:
            client.sendall(head)
            step = TRICKLE_BYTES_PER_S // 4
            for start in range(0, len(body), step):
                if standing.is_over.wait(0.25):
                    break
                client.sendall(body[start : start + step])
    return None
