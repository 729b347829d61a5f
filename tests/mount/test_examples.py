"""The examples do on a mount what they say; each ends in a check of its own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .harness import ROOT, MountVolume, Volume
from .programs import run
from .witness import Bucket

EXAMPLES = ROOT / "examples"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"}


def run_example(name: str, *arguments: str | Path, scratch: Path, deadline_s: float = 80) -> str:
    """Run an example as a user would, and return what it printed."""
    interpreter = [sys.executable] if name.endswith(".py") else []
    homes = {"HF_HOME": str(scratch / "hf"), "TMPDIR": str(scratch)}
    return run(
        *interpreter,
        EXAMPLES / name,
        *arguments,
        cwd=scratch,
        stdin=b"",
        deadline_s=deadline_s,
        environment={"PYTHONPATH": str(ROOT), **OFFLINE, **homes},
    )


def test_files_by_python_and_by_shell(volume: Volume, tmp_path: Path) -> None:
    run_example("files.py", volume.path / "files", scratch=tmp_path)

    assert not volume.bucket.files()


def test_many_files_are_copied_in_parallel(volume: Volume, tmp_path: Path) -> None:
    run_example("parallel_copy.sh", volume.path / "d", tmp_path / "copies", scratch=tmp_path)

    assert len(volume.bucket.files()) == 41


def test_images_are_decoded_from_local_copies(volume: Volume, tmp_path: Path) -> None:
    printed = run_example("images.py", volume.path / "pictures", scratch=tmp_path)

    assert printed.count("48 images") == 2


def test_training_is_resumed_in_mid_epoch(volume: Volume, tmp_path: Path) -> None:
    printed = run_example("train_and_resume.py", volume.path / "run", scratch=tmp_path)

    assert "the same losses" in printed


def test_tables_of_every_reader_agree(volume: Volume, tmp_path: Path) -> None:
    printed = run_example("tabular.py", volume.path / "tables", scratch=tmp_path)

    assert "datasets agree" in printed


def test_a_delta_table_has_its_versions(volume: Volume, tmp_path: Path) -> None:
    printed = run_example("delta.py", volume.path / "delta", scratch=tmp_path)

    assert "versions 0 and 1" in printed


def fingerprint_in(printed: str) -> str:
    found = re.search(r"fingerprint (\w+): 5000 rows", printed)
    assert found, printed
    return found[1]


LOAD_AGAIN = """
import sys
sys.path.insert(0, sys.argv[1])
from spark import load
dataset = load(sys.argv[2])
print(f"fingerprint {dataset._fingerprint}: {len(dataset)} rows")
"""


@pytest.mark.timeout(240)
def test_a_table_of_spark_is_the_same_after_a_remount(
    mount_volume: MountVolume, bucket: Bucket, tmp_path: Path
) -> None:
    if shutil.which("java") is None:
        pytest.skip("there is no Java")
    mount = mount_volume()
    mount.watch_again(200)
    place = mount.path
    printed = run_example("spark.py", place / "t", scratch=tmp_path, deadline_s=180)
    assert {name for name in bucket.files() if name.endswith("_SUCCESS")} == {"t/_SUCCESS"}

    mount.remount()
    again = subprocess.run(
        [sys.executable, "-c", LOAD_AGAIN, str(EXAMPLES), str(place / "t")],
        env={**os.environ, **OFFLINE, "HF_HOME": str(tmp_path / "another")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert fingerprint_in(again.stdout) == fingerprint_in(printed)
