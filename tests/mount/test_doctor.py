"""`ucfuse doctor` as users call it, against a real store."""

import json

import pytest

from .harness import ucfuse
from .witness import Bucket


def test_doctor_finds_nothing_wrong_with_a_good_store(
    environment: dict[str, str], bucket: Bucket
) -> None:
    """README, doctor: one line per check."""
    done = ucfuse("doctor", bucket.source, environment=environment)

    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert all(line.startswith(("ok  ", "warn")) for line in lines)
    for word in ("/dev/fuse", "credentials", "list", "write", "read", "conditional", "clock"):
        assert any(line.startswith("ok") and word in line for line in lines), (word, lines)
    assert bucket.names() == set()


def test_doctor_without_a_source_looks_at_the_machine_alone(environment: dict[str, str]) -> None:
    done = ucfuse("doctor", "--json", environment=environment)
    found = {entry["subject"]: entry for entry in json.loads(done.stdout)}
    assert done.returncode == 0, done.stdout
    assert {"/dev/fuse", "fusermount3", "user_allow_other", "credentials"} <= set(found)
    assert "list" not in found


FAILING = {
    "wrong secret": ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "list"),
    "unreachable store": ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "list"),
}


@pytest.mark.parametrize("case", FAILING)
def test_doctor_says_what_fails_and_the_mend(
    environment: dict[str, str], bucket: Bucket, case: str
) -> None:
    over, subject = FAILING[case]
    done = ucfuse("doctor", bucket.source, environment={**environment, **over})
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("fail")]
    assert line.startswith(f"fail  {subject}: ")
    assert "; see " in line
