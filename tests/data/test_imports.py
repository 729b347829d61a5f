"""What importing costs: the mount needs no torch, and the data classes nothing of the mount."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("ucfuse", {"torch", "trio", "pyfuse3", "boto3"}),
        ("ucfuse.cli.main", {"torch"}),
        ("ucfuse.mount", {"torch"}),
        ("ucfuse.data", {"trio", "pyfuse3", "boto3", "botocore", "awscrt"}),
    ],
)
def test_a_module_imports_nothing_that_it_does_not_need(module: str, unwanted: set[str]) -> None:
    script = f"import sys, {module}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not unwanted & set(done.stdout.split())
