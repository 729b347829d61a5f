"""Programs that the checkpoint tests run as processes of their own.

python -m tests.data.checkpoint_programs NAME ARGUMENTS
torchrun ... -m tests.data.checkpoint_programs NAME ARGUMENTS
"""

import gc
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from tests.servers.server import free_port
from ucfuse.data import UCVolumeReader, UCVolumeWriter, latest_complete, verify
from ucfuse.data.checkpoint import SaveFailed

from .checkpoints import blank, equal, load, small_state


def say(line: str) -> None:
    """Tell the test that started this program."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def dropped(path: str, kind: str) -> None:
    """Save asynchronously, drop the future, and end at once."""
    checkpointer = AsyncCheckpointerType[kind]
    if checkpointer is AsyncCheckpointerType.PROCESS:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    writer = UCVolumeWriter(path)
    dcp.async_save(small_state(1), storage_writer=writer, async_checkpointer_type=checkpointer)
    say("the training went on")


def handled(path: str) -> None:
    """Save asynchronously, ask the future, and take the error as known."""
    future = dcp.async_save(small_state(1), storage_writer=UCVolumeWriter(path))
    say(type(future.exception()).__name__)


def in_process(path: str) -> None:
    """Save twice through torch's checkpoint process, training on meanwhile; load after each."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for seed in (1, 2):
        state = small_state(seed)
        state["own"] = {f"of{rank}": torch.full((50,), float(rank))}
        expected = {"own": blank(state["own"]), **small_state(seed)}
        expected["own"][f"of{rank}"].fill_(rank)
        dcp.async_save(
            state,
            storage_writer=UCVolumeWriter(path, thread_count=2),
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        )
        for tensor in (*state["model"].values(), *state["optim"].values()):
            tensor.fill_(9)  # the training goes on
        loaded = blank(expected)
        dcp.load(loaded, storage_reader=UCVolumeReader(path))
        assert equal(loaded, expected)
        dist.barrier()
    if rank == 0:
        verify(path)
    dist.destroy_process_group()


PLACEMENTS: list[list[Placement]] = [[Shard(0)], [Shard(1)], [Replicate()]]


def resharded(root: str) -> None:
    """Save with each placement of a tensor and load with each other, in ours and torch's ways."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(1)
    whole = {"a": torch.randn(37, 22), "b": torch.randn(5, 6, 7), "c": torch.randn(1 << 16, 3)}

    def placed(placement: list[Placement]) -> dict[str, DTensor]:
        return {name: distribute_tensor(value, mesh, placement) for name, value in whole.items()}

    for number, saved_as in enumerate(PLACEMENTS):
        for writer in (UCVolumeWriter, dcp.FileSystemWriter):
            path = f"{root}/{number}-{writer.__name__}"
            dcp.save(placed(saved_as), storage_writer=writer(path, thread_count=2))
            for loaded_as in PLACEMENTS:
                target = {
                    name: torch.zeros_like(value) for name, value in placed(loaded_as).items()
                }
                dcp.load(target, storage_reader=UCVolumeReader(path, readers=3))
                for name, value in target.items():
                    assert torch.equal(value.full_tensor(), whole[name])
            plain = {name: torch.zeros_like(value) for name, value in whole.items()}
            dcp.load(plain, storage_reader=dcp.FileSystemReader(path))
            assert equal(plain, whole)
    dist.destroy_process_group()


def one_rank_fails(root: str) -> None:
    """Rank 1 cannot write: every rank hears of it, and an async failure at the next save."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    good, bad = f"{root}/good", f"{root}/bad"
    state = {"own": {f"of{rank}": torch.ones(5)}}
    dcp.save(state, storage_writer=UCVolumeWriter(good))

    class Failing(UCVolumeWriter):
        def write_data(self, plan, planner):  # type: ignore[no-untyped-def]
            if rank == 1:
                raise OSError(28, "no room")
            return super().write_data(plan, planner)

    dcp.async_save(state, storage_writer=Failing(bad))
    with pytest.raises(SaveFailed, match="no room"):
        dcp.async_save(state, storage_writer=UCVolumeWriter(bad))
    assert latest_complete(root) == good
    dist.barrier()
    dcp.async_save(state, storage_writer=UCVolumeWriter(bad)).result()
    assert latest_complete(root) == bad
    dist.destroy_process_group()


def memory(path: str, count: str) -> None:
    """Save asynchronously many times, training on; print VmRSS in KiB after each save."""
    state = {f"w{n}": torch.randn(1 << 20) for n in range(16)}
    future = None
    for _ in range(int(count)):
        for tensor in state.values():
            tensor.add_(1)
        future = dcp.async_save(state, storage_writer=UCVolumeWriter(path))
        future.result()
        gc.collect()
        lines = Path("/proc/self/status").read_text().splitlines()
        say(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


def rounds(first: str, second: str, count: str) -> None:
    """Save on rank 0, meet, load on all ranks; each rank has a mount of its own."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mount = (first, second)[rank]
    for number in range(int(count)):
        if rank == 0:
            torch.save(small_state(number), f"{mount}/ckpt.pt")
        dist.barrier()
        loaded = torch.load(f"{mount}/ckpt.pt", map_location="cpu", weights_only=True)
        assert equal(loaded, small_state(number)), f"round {number}: an old or mixed file"
        dist.barrier()


def distributed_rounds(first: str, second: str, count: str) -> None:
    """Both ranks save their part through their own mount, into one directory; both load all."""
    rank = dist.get_rank()
    mount = (first, second)[rank]
    for number in range(int(count)):
        state = small_state(number)
        state["own"] = {f"of{rank}": torch.full((50,), float(rank + number))}
        dcp.save(state, storage_writer=UCVolumeWriter(f"{mount}/dcp"))
        own = {f"of{each}": torch.full((50,), float(each + number)) for each in (0, 1)}
        complete = {**small_state(number), "own": own}
        assert equal(load(complete, f"{mount}/dcp"), complete), f"round {number}"
        dist.barrier()
    dist.destroy_process_group()


def ranks(name: str, *words: str) -> None:
    """Run a program in two ranks. Faster than torchrun: torch is loaded once."""
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
            PROGRAMS[name](*words)
            return
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(max(map(abs, codes)))


def both_rounds(first: str, second: str, count: str, distributed_count: str) -> None:
    """Do the rounds of both kinds."""
    rounds(first, second, count)
    distributed_rounds(first, second, distributed_count)


def serve() -> None:
    """Run programs until the input ends. A child leaves as any program does."""
    with tempfile.TemporaryDirectory() as directory:
        # What is imported late is imported once, and not in every child.
        dcp.save(small_state(0), storage_writer=UCVolumeWriter(directory))
        load(small_state(0), directory)
    gc.freeze()
    for line in sys.stdin:
        output, name, *words = json.loads(line)
        child = os.fork()
        if child == 0:
            printed = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(printed, 1)
            os.dup2(printed, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            PROGRAMS[name](*words)
            return
        say(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))


PROGRAMS: dict[str, Callable[..., None]] = {
    program.__name__: program
    for program in (
        dropped,
        handled,
        in_process,
        resharded,
        one_rank_fails,
        memory,
        both_rounds,
        ranks,
        serve,
    )
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
