"""The systemd unit and the Kubernetes pod of examples/: that systemd and Kubernetes take them."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from ucfuse.cli.mount_request import parse_mount

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
UNIT = EXAMPLES / "systemd/ucfuse@.service"


@pytest.fixture
def pod() -> Any:
    return yaml.safe_load((EXAMPLES / "kubernetes.yaml").read_text())


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """README, systemd."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze")
    program = tmp_path / "ucfuse"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    # An instance of it; and the program is not installed where the unit expects it.
    text = UNIT.read_text().replace("/usr/local/bin/ucfuse", str(program))
    instance = tmp_path / "ucfuse@images.service"
    instance.write_text(text)
    done = subprocess.run(
        [analyze, "verify", "--man=no", instance],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if "ucfuse" in line]
    assert (done.returncode, complaints) == (0, []), done.stderr


def test_the_unit_calls_our_commands_as_they_are() -> None:
    lines = [line for line in UNIT.read_text().splitlines() if line.startswith("ExecStart=")]
    (words,) = [line.partition(" mount ")[2].split() for line in lines]
    filled = {"$OPTIONS": "--allow-other", "${SOURCE}": "s3://bucket", "${MOUNTPOINT}": "/mnt"}
    request = parse_mount([filled.get(word, word) for word in words], {})
    assert request.foreground
    assert "Type=notify" in UNIT.read_text()


def test_kubernetes_takes_the_pod(pod: Any) -> None:
    """README, Kubernetes."""
    version = kubernetes_validate.latest_version()
    kubernetes_validate.validate(pod, version, strict=True)

    pod["spec"]["containers"][0]["volumeMounts"][0]["mountPropagations"] = "Bidirectional"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, version, strict=True)


def test_the_mount_reaches_the_other_containers_of_the_pod(pod: Any) -> None:
    (sidecar,) = pod["spec"]["initContainers"]
    (work,) = pod["spec"]["containers"]

    def propagation(container: Any) -> str:
        (found,) = [each for each in container["volumeMounts"] if each["name"] == "volumes"]
        return str(found["mountPropagation"])

    assert (propagation(sidecar), propagation(work)) == ("Bidirectional", "HostToContainer")
    assert sidecar["restartPolicy"] == "Always"  # a sidecar: starts first, ends last
    assert sidecar["securityContext"]["privileged"]  # else Bidirectional is refused
    assert sidecar["command"][:2] == ["ucfuse", "mount"]
    request = parse_mount(sidecar["command"][2:], {})
    assert request.foreground
    grace_s = pod["spec"]["terminationGracePeriodSeconds"]
    assert grace_s > request.config.commit_timeout_s
