"""What `pip install` makes of the project."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("extra", ["data", "dev", "examples"])
def test_an_extra_resolves(extra: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet"]
    done = subprocess.run(
        [*command, "--report", str(report), f"{PROJECT}[{extra}]"],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    (project,) = (
        each["metadata"]
        for each in json.loads(report.read_text())["install"]
        if each["metadata"]["name"] == "ucfuse"
    )
    assert extra in project["provides_extra"]
