"""What a process that moves many small files asks of its interpreter and of the kernel."""

import gc
import resource

__all__ = ["tune_process"]

# Container objects that may be made before a collection; Python's default is 700.
GC_ALLOCATIONS = 50_000


def tune_process() -> None:
    """Make room for many descriptors, and keep the garbage collector from what lives for ever.

    Every dirty file and every connection is a descriptor; 1,024 is the usual soft limit. The
    collector took a tenth of the CPU of small reads: what was loaded until now never dies, and
    requests leave few cycles.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, 10, 10)
