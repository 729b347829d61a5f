"""What trains on Databricks' own mount trains under `--emulate`: nothing of it is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .harness import ROOT, Mount, MountVolume, ucfuse
from .test_checkpoint_mounts import python
from .test_examples import run_example

EXAMPLES = ROOT / "examples"
# One code for both, and tables of errnos: the second adds little.
MODES = ["databricks", pytest.param("serverless", marks=pytest.mark.long)]

DISTRIBUTED = """
import sys
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter

root = sys.argv[1]
state = {"weights": torch.arange(3_000_000, dtype=torch.float32), "step": 7}
dcp.save(state, storage_writer=FileSystemWriter(root, thread_count=3))
dcp.save(state, storage_writer=FileSystemWriter(root))  # over the first one
empty = {"weights": torch.zeros(3_000_000), "step": 0}
dcp.load(empty, storage_reader=FileSystemReader(root))
assert torch.equal(empty["weights"], state["weights"])
assert empty["step"] == 7
print("the same")
"""
TORCH_SAVE = """
import sys
import torch

model = torch.nn.Linear(1000, 1000)
for _ in range(2):  # anew, then over it
    torch.save(model.state_dict(), sys.argv[1])
for mmap in (False, True):
    loaded = torch.load(sys.argv[1], mmap=mmap, weights_only=True)
    assert torch.equal(loaded["weight"], model.weight)
print("the same")
"""


@pytest.fixture(params=MODES)
def mount(mount_volume: MountVolume, request: pytest.FixtureRequest) -> Mount:
    return mount_volume(f"--emulate={request.param}")


def assert_nothing_was_refused(mount: Mount) -> None:
    done = ucfuse("status", "--portability", "--json", environment=mount.environment)
    (found,) = [each for each in json.loads(done.stdout) if each["mountpoint"] == str(mount.path)]
    assert found["operations"] == []


def run_script(script: str, path: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", script, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=80,
        check=True,
    ).stdout


@pytest.mark.parametrize(
    ("script", "name"), [(TORCH_SAVE, "model.pt"), (DISTRIBUTED, "dcp")], ids=["torch.save", "DCP"]
)
def test_checkpoints_of_torch(mount: Mount, script: str, name: str) -> None:
    assert "the same" in run_script(script, mount.path / name)
    assert_nothing_was_refused(mount)


def test_checkpoints_of_ours(mount: Mount) -> None:
    printed = python(EXAMPLES / "checkpoint_distributed.py", mount.path / "c")
    assert "saved, loaded, verified" in printed
    printed = python(EXAMPLES / "checkpoint_torch_save.py", mount.path)
    assert "saved and loaded" in printed
    assert_nothing_was_refused(mount)


def test_dataset_and_loader(mount: Mount, tmp_path: Path) -> None:
    printed = run_example("images.py", mount.path / "pictures", scratch=tmp_path)
    assert printed.count("48 images") == 2
    printed = run_example("train_and_resume.py", mount.path / "run", scratch=tmp_path)
    assert "the same losses" in printed
    assert_nothing_was_refused(mount)
