"""`ucfuse status --watch`: what a picture says of two moments."""

from typing import Any

from ucfuse.cli.reports import Report
from ucfuse.cli.watching import Sample, picture_of
from ucfuse.latency import BOUNDS_S
from ucfuse.registry import MountRecord

RECORD = MountRecord(
    mountpoint="/mnt", source="s3://b/", pid=1, version="1", commit_timeout_s=1.0, boot_id="x"
)


def counts(**by_bound: int) -> list[int]:
    found = [0] * (len(BOUNDS_S) + 1)
    for bound, count in by_bound.items():
        found[BOUNDS_S.index(float(bound.removeprefix("le_").replace("_", ".")))] = count
    return found


def sample(at_s: float, histograms: dict[str, Any], **changes: Any) -> Sample:
    answer = {
        "pid": 1,
        "uptime_s": at_s,
        "memory": {"reserved_bytes": 0, "limit_bytes": 1 << 30},
        "store_bytes_received": 0,
        "store_bytes_sent": 0,
        "store_unchanged": 0,
        "disk_cache": None,
        "volumes": [],
        "uncommitted": [],
        **changes,
    }
    return Sample(at_s, Report(RECORD, answer), histograms)


def test_rates_and_latencies_are_those_since_the_last_picture() -> None:
    first = sample(10.0, {"fuse": {"READ": counts(le_5_0=1000)}})
    now = sample(
        12.0,
        {"fuse": {"READ": counts(le_5_0=1000, le_0_001=80)}},
        store_bytes_received=20 << 20,
        store_unchanged=8,
        disk_cache={"hits": 0, "misses": 0},
    )
    text = "\n".join(picture_of(now, {"/mnt": first}))

    assert "received 10.0MiB/s, sent 0B/s, unchanged 4/s" in text
    (line,) = [line for line in text.splitlines() if "READ" in line]
    assert line.split()[:3] == ["fuse", "READ", "40"]
    assert line.split()[-1] == "1,080"
    assert "us" in line.split()[3]  # 1 ms at most; the slow ones were before


def test_hits_are_shown_as_a_share() -> None:
    first = sample(1.0, {}, disk_cache={"hits": 1, "misses": 1})
    now = sample(2.0, {}, disk_cache={"hits": 31, "misses": 11})
    assert "hits 30/s, misses 10/s (75 % hits)" in "\n".join(picture_of(now, {"/mnt": first}))


def test_a_mount_that_began_anew_is_not_compared_with_the_one_before() -> None:
    before = sample(1.0, {}, store_bytes_received=1 << 30)
    now = sample(2.0, {}, pid=2)
    assert list(picture_of(now, {"/mnt": before}))[1:] == ["  up 2.0s"]


def test_a_daemon_that_does_not_answer_is_named() -> None:
    silent = Sample(1.0, Report(RECORD, None, "the daemon has died"), {})
    assert list(picture_of(silent, {})) == ["/mnt  s3://b/", "  pid 1: the daemon has died"]
