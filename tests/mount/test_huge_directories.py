"""A million names in one directory of a real mount."""

import json
import os
import subprocess
import sys

import pytest

from .harness import ROOT

OBJECTS = 1_000_000
LONGEST_S = 900.0


@pytest.mark.long
@pytest.mark.timeout(LONGEST_S)
def test_a_million_names_are_all_listed_and_cost_a_gibibyte_at_most() -> None:
    """They are told one after another, the first long before the last."""
    done = subprocess.run(
        [sys.executable, ROOT / "tests/bench/listing.py", "--objects", str(OBJECTS), "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        timeout=LONGEST_S,
        check=True,
    )

    told = json.loads(done.stdout)
    assert told["objects"] == OBJECTS
    assert told["grown_MiB"] <= 1024
    assert told["first_entry_s"] < 0.05 * OBJECTS / told["entries_per_s"]
