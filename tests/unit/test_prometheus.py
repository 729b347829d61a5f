"""Prometheus: the names are those of the README, and the numbers those of `status`."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.servers.server import free_port
from ucfuse.errors import ConfigError
from ucfuse.latency import Histogram
from ucfuse.prometheus import MountCollector, serve_metrics

README = Path(__file__).resolve().parents[2] / "README.md"


def status() -> dict[str, Any]:
    return {
        "mountpoint": "/mnt",
        "source": "s3://b/",
        "version": "1",
        "uptime_s": 12.5,
        "volumes": [
            {
                "name": "a.b.c",
                "is_away": True,
                "store_requests": {"GET": 3},
                "store_unchanged": 1,
                "store_bytes_sent": 10,
                "store_bytes_received": 20,
                "skipped_keys": 2,
            }
        ],
        "fuse_requests": {"READ": 7},
        "memory": {"limit_bytes": 100, "reserved_bytes": 30},
        "disk_cache": {
            "limit_bytes": 50, "used_bytes": 5, "hits": 4, "misses": 6,
            "bytes_read": 40, "bytes_written": 60,
        },
        "uncommitted": [{"path": "f", "bytes": 9, "age_s": 3.0, "error": None}],
        "kept": 1,
    }  # fmt: skip


def histograms() -> dict[str, Any]:
    quick = Histogram()
    quick.add(0.0009)
    quick.add(500.0)
    return {"fuse": [("", {"READ": quick})], "store": [("a.b.c", {"GET": quick})]}


async def ask(port: int, request: bytes) -> bytes:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(request)
        return b"".join([chunk async for chunk in stream])


@pytest.fixture
def port() -> int:
    return free_port()


async def test_prometheus_reads_what_status_says(port: int) -> None:
    async with trio.open_nursery() as nursery:
        await serve_metrics(port, status, histograms, nursery)
        answer = await ask(port, b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
        nursery.cancel_scope.cancel()

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }
    assert found["ucfuse_store_requests_total", "GET", "a.b.c"] == 3
    assert found["ucfuse_fuse_requests_total", "READ"] == 7
    assert found["ucfuse_store_away", "a.b.c"] == 1
    assert found["ucfuse_uncommitted_bytes",] == 9
    assert found["ucfuse_disk_cache_hits_total",] == 4
    assert found["ucfuse_fuse_request_seconds_count", "READ"] == 2
    assert found["ucfuse_fuse_request_seconds_bucket", "0.001", "READ"] == 1
    assert found["ucfuse_fuse_request_seconds_bucket", "100.0", "READ"] == 1
    assert found["ucfuse_store_request_seconds_bucket", "+Inf", "GET", "a.b.c"] == 2


@pytest.mark.parametrize(
    ("request_line", "code"),
    [(b"GET /other HTTP/1.1", b"404"), (b"POST /metrics HTTP/1.1", b"405"), (b"nonsense", b"")],
)
async def test_other_questions_are_refused_and_harm_nothing(
    port: int, request_line: bytes, code: bytes
) -> None:
    async with trio.open_nursery() as nursery:
        await serve_metrics(port, status, histograms, nursery)
        answer = await ask(port, request_line + b"\r\n\r\n")
        assert answer[9:12] == code
        assert (await ask(port, b"HEAD / HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
        nursery.cancel_scope.cancel()


async def test_a_port_that_is_taken_is_one_line_with_the_mend(port: int) -> None:
    async with trio.open_nursery() as nursery:
        serve = partial(serve_metrics, port, status, histograms, nursery)
        await serve()
        with pytest.raises(ConfigError, match="choose another port"):
            await serve()
        nursery.cancel_scope.cancel()


def test_readme_lists_exactly_the_names_that_are_exported() -> None:
    """README, Metrics: the table of names."""
    kinds = {"counter": "_total", "info": "_info"}
    exported = {
        family.name + kinds.get(family.type, "")
        for family in MountCollector(status, histograms).collect()
    }
    assert set(re.findall(r"^\| `(ucfuse_\w+)", README.read_text(), re.MULTILINE)) == exported
