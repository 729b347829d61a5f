"""Counters of one mount, read by `ucfuse status` and by Prometheus.

Stores and the kernel adapter count; `reporting` reads. Plain integers: everything is counted in
the trio loop, nothing here needs a lock.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from ucfuse.latency import Histogram

__all__ = ["STORE_REQUEST_KINDS", "Metrics"]

STORE_REQUEST_KINDS = (
    "GET", "HEAD", "LIST", "PUT", "COPY", "DELETE",
    "CREATE", "PART", "PARTCOPY", "COMPLETE", "ABORT",
)  # fmt: skip


@dataclass(slots=True)
class Metrics:
    """What one mount has done since it began."""

    store_requests: Counter[str] = field(
        default_factory=lambda: Counter(dict.fromkeys(STORE_REQUEST_KINDS, 0))
    )
    store_latencies: defaultdict[str, Histogram] = field(
        default_factory=lambda: defaultdict(Histogram)
    )
    """How long each attempt took, by kind, whatever came of it."""
    store_unchanged: int = 0
    """Questions about a version that the store answered without a body: nothing had changed."""
    store_bytes_sent: int = 0
    store_bytes_received: int = 0
    fuse_requests: Counter[str] = field(default_factory=Counter)
    fuse_latencies: defaultdict[str, Histogram] = field(
        default_factory=lambda: defaultdict(Histogram)
    )
    """How long programs waited for each answer, by kind of request."""
    troubles: dict[str, str] = field(default_factory=dict)
    """What keeps a request from being answered, while it is repeated, by its key."""
    cache_hits: int = 0
    """Ranges that came from the disk cache alone."""
    cache_misses: int = 0
    """Ranges for which, or for some of which, the store was asked though the cache is on."""
    cache_bytes_read: int = 0
    cache_bytes_written: int = 0
    is_away: bool = False
    """The store gave no answer for so long that it is not asked any more, but for a probe."""
    skipped_keys: int = 0
    """Keys seen in listings that cannot be file names (empty segment, `.`, `..`, NUL, too long).
    Counted once per listing that meets them."""
