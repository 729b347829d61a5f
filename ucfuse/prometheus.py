"""What Prometheus may ask of a mount: its counters by HTTP, on 127.0.0.1 alone.

`mount` starts it if the user named a port. The numbers are those of `ucfuse status`, under names
that the README lists; histograms come as they are counted. It changes nothing.

Concurrency: connections are tasks of the nursery that is given, each with a deadline. The answer
is made in the loop, which takes about a millisecond.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import trio
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from ucfuse.errors import ConfigError
from ucfuse.latency import BOUNDS_S, Histogram

__all__ = ["Histograms", "MountCollector", "serve_metrics"]

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
CLIENT_DEADLINE_S = 5.0
MAX_REQUEST_BYTES = 1 << 16

Histograms = Mapping[str, Sequence[tuple[str, Mapping[str, Histogram]]]]
"""`fuse` and `store`: pairs of a volume's name and its histograms by kind of request."""
AllHistograms = Callable[[], Histograms]
Status = Callable[[], Mapping[str, Any]]


async def serve_metrics(
    port: int, status: Status, histograms: AllHistograms, nursery: trio.Nursery
) -> None:
    """Begin to answer at `http://127.0.0.1:PORT/metrics`. Raises `ConfigError`: it is taken."""
    registry = CollectorRegistry()
    registry.register(MountCollector(status, histograms))
    try:
        listeners = await trio.open_tcp_listeners(port, host=HOST)
    except OSError as error:
        raise ConfigError(
            f"--metrics-port {port}: {error.strerror}; choose another port"
        ) from error
    answer = partial(_answer, registry)
    nursery.start_soon(partial(trio.serve_listeners, answer, listeners, handler_nursery=nursery))


async def _answer(registry: CollectorRegistry, stream: trio.SocketStream) -> None:
    """Answer one request, and close."""
    with trio.move_on_after(CLIENT_DEADLINE_S):
        try:
            async with stream:
                method, path = await _request_line(stream)
                await stream.send_all(_response(registry, method, path))
        except (trio.BrokenResourceError, ValueError):
            log.debug("a question for metrics was cut or made no sense")


async def _request_line(stream: trio.SocketStream) -> tuple[str, str]:
    """Return method and path of a request. Raises `ValueError`, `BrokenResourceError`."""
    received = b""
    while b"\r\n\r\n" not in received:
        chunk = await stream.receive_some()
        received += chunk
        if not chunk or len(received) > MAX_REQUEST_BYTES:
            raise trio.BrokenResourceError
    method, target, _ = received.partition(b"\r\n")[0].decode("latin-1").split(" ")
    return method, target.partition("?")[0]


def _response(registry: CollectorRegistry, method: str, path: str) -> bytes:
    if method not in ("GET", "HEAD"):
        return _message("405 Method Not Allowed", "text/plain", b"GET only\n")
    if path not in ("/", "/metrics"):
        return _message("404 Not Found", "text/plain", b"see /metrics\n")
    body = generate_latest(registry)
    return _message("200 OK", CONTENT_TYPE_LATEST, body, is_sent=method == "GET")


def _message(status: str, kind: str, body: bytes, *, is_sent: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + (body if is_sent else b"")


class MountCollector(Collector):
    """Makes Prometheus' samples of one mount's status and histograms, each time it is asked."""

    def __init__(self, status: Status, histograms: AllHistograms) -> None:
        self._status = status
        self._histograms = histograms

    def collect(self) -> Iterator[Metric]:
        """Yield everything that is known now."""
        status, histograms = self._status(), self._histograms()
        yield _info(status)
        yield _gauge("uptime_seconds", "Time since the mount began", status["uptime_s"])
        yield from _of_volumes(status["volumes"])
        yield _of_histograms("store", "Time per request to the store", histograms["store"])
        yield _counter(
            "fuse_requests", "Requests of the kernel", "request", status["fuse_requests"]
        )
        yield _of_histograms("fuse", "Time per request of the kernel", histograms["fuse"])
        yield _gauge("memory_limit_bytes", "--memory-limit", status["memory"]["limit_bytes"])
        yield _gauge(
            "memory_reserved_bytes", "Memory that buffers take", status["memory"]["reserved_bytes"]
        )
        yield from _of_uncommitted(status["uncommitted"])
        yield _gauge("kept_files", "Files that wait in `ucfuse recover`", status["kept"])
        if status["disk_cache"] is not None:
            yield from _of_disk_cache(status["disk_cache"])


def _info(status: Mapping[str, Any]) -> Metric:
    family = InfoMetricFamily("ucfuse_mount", "What is mounted where, by which version")
    named = {name: str(status[name]) for name in ("mountpoint", "source", "version")}
    family.add_metric([], named)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"ucfuse_{name}", text, value=value)


def _counter(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"ucfuse_{name}", text, labels=[label])
    for kind, count in counts.items():
        family.add_metric([kind], count)
    return family


def _of_volumes(volumes: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "ucfuse_store_requests", "Requests to the store", labels=["volume", "request"]
    )
    away = GaugeMetricFamily(
        "ucfuse_store_away", "1 while the store gives no answer", labels=["volume"]
    )
    counters = {
        key: CounterMetricFamily(f"ucfuse_{name}", text, labels=["volume"])
        for key, name, text in (
            ("store_unchanged", "store_unchanged", "Questions answered by: nothing changed"),
            ("store_bytes_sent", "store_sent_bytes", "Bytes of bodies sent to the store"),
            ("store_bytes_received", "store_received_bytes", "Bytes of objects received"),
            ("skipped_keys", "skipped_keys", "Keys in listings that cannot be file names"),
        )
    }
    for volume in volumes:
        name = [volume["name"]]
        for kind, count in volume["store_requests"].items():
            requests.add_metric([*name, kind], count)
        away.add_metric(name, float(volume["is_away"]))
        for key, family in counters.items():
            family.add_metric(name, volume[key])
    yield from (requests, away, *counters.values())


def _of_histograms(
    side: str, text: str, histograms: Sequence[tuple[str, Mapping[str, Histogram]]]
) -> Metric:
    labels = ["volume", "request"] if side == "store" else ["request"]
    family = HistogramMetricFamily(f"ucfuse_{side}_request_seconds", text, labels=labels)
    for volume, kinds in histograms:
        for kind, histogram in kinds.items():
            values = [volume, kind] if side == "store" else [kind]
            family.add_metric(values, list(_cumulated(histogram)), histogram.sum_s)
    return family


def _cumulated(histogram: Histogram) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], histogram.counts, strict=True):
        total += count
        yield bound, total


def _of_uncommitted(files: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    oldest_s = max((file["age_s"] for file in files), default=0.0)
    size = sum(file["bytes"] for file in files)
    yield _gauge("uncommitted_files", "Files with bytes that the store lacks", len(files))
    yield _gauge("uncommitted_bytes", "Bytes that the store lacks", size)
    yield _gauge("uncommitted_oldest_seconds", "For how long the oldest of them waits", oldest_s)


def _of_disk_cache(cache: Mapping[str, int]) -> Iterator[Metric]:
    yield _gauge("disk_cache_limit_bytes", "--disk-cache", cache["limit_bytes"])
    yield _gauge("disk_cache_used_bytes", "What is on the disk", cache["used_bytes"])
    for key, name, text in (
        ("hits", "hits", "Ranges that came from the disk as a whole"),
        ("misses", "misses", "Ranges that the store was asked for"),
        ("bytes_read", "read_bytes", "Bytes read from the disk"),
        ("bytes_written", "written_bytes", "Bytes written to the disk"),
    ):
        yield CounterMetricFamily(f"ucfuse_disk_cache_{name}", text, value=cache[key])
