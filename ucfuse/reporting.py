"""What a mount tells of itself: the object that `ucfuse status --json` prints, and its histograms.

`mount` asks for them whenever somebody asks the mount. Reads counters; changes nothing.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from operator import add

from ucfuse import __version__
from ucfuse.assembly import Assembly
from ucfuse.config import MountConfig, StoreOptions
from ucfuse.fs.portability_log import Encounters
from ucfuse.kernel.errnos import EMULATED_ERRNOS
from ucfuse.latency import Histogram, quantile
from ucfuse.metrics import STORE_REQUEST_KINDS, Metrics
from ucfuse.mounted_volume import MountedVolume
from ucfuse.writing.leftovers import find_leftovers
from ucfuse.writing.session_directory import staging_directory

__all__ = ["histograms_of", "portability_of", "status_of"]


def status_of(
    config: MountConfig, assembly: Assembly, programs: Metrics, *, uptime_s: float
) -> Mapping[str, object]:
    """Return everything but warnings. `programs` counts what programs asked for."""
    volumes = assembly.volumes
    only = volumes[0].config.store if len(volumes) == 1 else StoreOptions()
    return {
        "mountpoint": str(config.mountpoint),
        "source": config.label,
        "address": only.address,
        "endpoint_url": only.endpoint_url,
        "version": __version__,
        "pid": os.getpid(),
        "emulate": config.emulation.value,
        "uptime_s": round(uptime_s, 3),
        **_store_counters([volume.metrics for volume in volumes]),
        "fuse_requests": dict(sorted(programs.fuse_requests.items())),
        "latencies": _latencies(histograms_of(assembly, programs)),
        "memory": {
            "limit_bytes": config.memory_limit_bytes,
            "reserved_bytes": sum(budget.reserved_bytes for budget in assembly.budgets),
        },
        "disk_cache": _disk_cache(volumes),
        "volumes": [_described(volume) for volume in volumes],
        "uncommitted": [asdict(file) for file in assembly.fs.uncommitted()],
        "kept": len(find_leftovers(staging_directory(config.state_dir))),
    }


def portability_of(config: MountConfig, encounters: Encounters) -> Mapping[str, object]:
    """Return what was met that is not portable, and what each strict mode answers to it."""
    return {
        "mountpoint": str(config.mountpoint),
        "source": config.label,
        "emulate": config.emulation.value,
        "operations": [
            {
                "program": met.program,
                "path": met.path,
                "operation": met.operation.value,
                "count": met.count,
                "first_at_s": round(met.first_at_s, 3),
                "last_at_s": round(met.last_at_s, 3),
                "errnos": {
                    mode.value: code for mode, code in EMULATED_ERRNOS[met.operation].items()
                },
            }
            for met in encounters
        ],
        "dropped": encounters.dropped_count,
    }


def histograms_of(
    assembly: Assembly, programs: Metrics
) -> Mapping[str, Mapping[str, Sequence[int]]]:
    """Return how many requests took how long: by side, kind and bucket (`latency.BOUNDS_S`)."""
    of_stores: dict[str, list[int]] = {}
    for volume in assembly.volumes:
        for kind, histogram in volume.metrics.store_latencies.items():
            counts = of_stores.setdefault(kind, [0] * len(histogram.counts))
            of_stores[kind] = list(map(add, counts, histogram.counts))
    return {"fuse": _counts(programs.fuse_latencies), "store": of_stores}


def _counts(histograms: Mapping[str, Histogram]) -> Mapping[str, Sequence[int]]:
    return {kind: histogram.counts for kind, histogram in sorted(histograms.items())}


def _latencies(histograms: Mapping[str, Mapping[str, Sequence[int]]]) -> Mapping[str, object]:
    return {
        side: {
            kind: {
                "count": sum(counts),
                "p50_s": round(quantile(counts, 0.5), 6),
                "p99_s": round(quantile(counts, 0.99), 6),
            }
            for kind, counts in kinds.items()
        }
        for side, kinds in histograms.items()
    }


def _described(volume: MountedVolume) -> Mapping[str, object]:
    config = volume.config
    return {
        "name": volume.name,
        "source": str(config.source) if volume.is_located else "",
        "address": config.store.address,
        "endpoint_url": config.store.endpoint_url,
        "region": config.store.region,
        "profile": config.store.profile,
        "sign_requests": config.store.sign_requests,
        "is_vended": volume.vend is not None,
        "read_only": volume.is_read_only,
        "problem": volume.problem,
        "is_away": volume.metrics.is_away,
        **_store_counters([volume.metrics]),
    }


def _store_counters(counters: Sequence[Metrics]) -> Mapping[str, object]:
    """Return what was asked of stores, all of them together."""
    return {
        "store_requests": {
            kind: sum(metrics.store_requests[kind] for metrics in counters)
            for kind in STORE_REQUEST_KINDS
        },
        "store_unchanged": sum(metrics.store_unchanged for metrics in counters),
        "store_bytes_sent": sum(metrics.store_bytes_sent for metrics in counters),
        "store_bytes_received": sum(metrics.store_bytes_received for metrics in counters),
        "skipped_keys": sum(metrics.skipped_keys for metrics in counters),
    }


def _disk_cache(volumes: Sequence[MountedVolume]) -> Mapping[str, int] | None:
    """Return what the disk cache did; all volumes use one directory under one limit."""
    caches = [volume.fs.cache for volume in volumes if volume.fs and volume.fs.cache]
    if not caches:
        return None
    return {
        "limit_bytes": caches[0].limit_bytes,
        "used_bytes": max(cache.used_bytes for cache in caches),
        "hits": sum(volume.metrics.cache_hits for volume in volumes),
        "misses": sum(volume.metrics.cache_misses for volume in volumes),
        "bytes_read": sum(volume.metrics.cache_bytes_read for volume in volumes),
        "bytes_written": sum(volume.metrics.cache_bytes_written for volume in volumes),
    }
