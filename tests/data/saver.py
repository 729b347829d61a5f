"""Saves in processes of their own, which a test may kill; started once, forked for each.

    python -m tests.data.saver

Each line of standard input is JSON: `directory`, `seed`, `threads`, `ranks`, `asynchronous`,
`meeting` (a file for the ranks to find each other). When all ranks have ended it answers with
their exit codes, negative where they were killed. 0: the save succeeded, as far as that rank can
tell; an async save is never asked how it went.
"""

import gc
import json
import os
import sys
import tempfile
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from ucfuse.data import UCVolumeWriter

from .checkpoints import small_state

PATIENCE_S = 0.4
FAILED = 3


def save(rank: int, order: dict[str, Any]) -> int:
    """Be one rank of one save."""
    if order["ranks"] > 1:
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(order["meeting"], order["ranks"]),
            rank=rank,
            world_size=order["ranks"],
            timeout=timedelta(seconds=20),
        )
    writer = UCVolumeWriter(
        order["directory"], thread_count=order["threads"], patience_s=PATIENCE_S
    )
    state = small_state(order["seed"])
    # Ranks share out equal values; this one is each rank's own.
    state["ranks"] = {f"of{rank}": torch.full((20,), float(rank))}
    if order["asynchronous"]:
        dcp.async_save(state, storage_writer=writer)
        return 0
    try:
        dcp.save(state, storage_writer=writer)
    except CheckpointException:
        return FAILED
    return 0


def run(order: dict[str, Any]) -> list[int]:
    """Return the exit code of each rank; never returns in a rank."""
    ranks = []
    for rank in range(order["ranks"]):
        child = os.fork()
        if child == 0:
            os.close(0)
            os.dup2(2, 1)
            code = save(rank, order)
            if order["asynchronous"]:
                sys.exit(code)  # what happens at exit is the point
            os._exit(code)
        ranks.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ranks]


def main() -> None:
    """Serve orders until the input ends."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        # What is imported late is imported once, and not in every child.
        dcp.save(small_state(0), storage_writer=UCVolumeWriter(directory))
    gc.freeze()
    for line in sys.stdin:
        codes = run(json.loads(line))
        sys.stdout.write(json.dumps(codes) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
