"""What libraries write: it loads back equal, from the mount and from the store itself."""

import sys
from pathlib import Path

import pytest

from .harness import Volume
from .programs import Conversation, run, shell
from .savers import LIBRARIES

SAVERS = str(Path(__file__).with_name("savers.py"))
CI_MIB, LONG_MIB = 64, 1024


def copy_out(volume: Volume, target: Path) -> None:
    """Bring what the store has to a local directory, past the mount."""
    for name in volume.bucket.files():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(volume.bucket.get(name))


def save_and_load(volume: Volume, library: str, copy: Path, mib: int, deadline_s: float) -> None:
    """Let the library write to the volume and load that, there and as the store has it."""
    command = [sys.executable, SAVERS, library, str(volume.path), str(copy), str(mib)]
    with Conversation(command) as program:
        assert program.hear(deadline_s) == "saved"
        assert volume.status()["uncommitted"] == []
        copy_out(volume, copy)
        program.say()
        program.end(deadline_s=deadline_s)


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_a_library_saves_loads_back_equal_from_mount_and_store(
    volume: Volume, tmp_path: Path, library: str
) -> None:
    save_and_load(volume, library, tmp_path, CI_MIB, 40)


@pytest.mark.long
def test_a_torch_checkpoint_of_a_gibibyte_loads_back_equal(volume: Volume, tmp_path: Path) -> None:
    save_and_load(volume, "torch", tmp_path, LONG_MIB, 80)


def test_git_packs_large_files(volume: Volume, tmp_path: Path) -> None:
    shell(
        f"""
        cd '{volume.path}'; git init -q repo; cd repo
        git config user.email a@b.c; git config user.name n
        head -c 12000000 /dev/urandom > large; git add large; git commit -qm one
        printf x >> large; git commit -qam two; git repack -qad; git fsck --strict
        git clone -q . '{tmp_path}/clone'; cmp large '{tmp_path}/clone/large'
        """
    )
    copy_out(volume, tmp_path / "copy")
    shell(
        """
        cd copy/repo; mkdir -p .git/refs/heads; git fsck --strict
        git -c safe.directory='*' checkout -q -f HEAD; cmp large ../../clone/large
        """,
        cwd=tmp_path,
    )


def test_children_that_end_in_mid_write_do_not_commit_a_streaming_file(volume: Volume) -> None:
    text = """
import os, subprocess, sys
block = bytes(range(256)) * 4096
with open(sys.argv[1], "wb", buffering=0) as file:
    for count in range(30):
        file.write(block)
        if count % 10 == 5:
            subprocess.run(["true"], check=True)
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
"""
    with volume.counting() as counts:
        run(sys.executable, "-c", text, volume.path / "f")

    assert counts.store["COMPLETE"] == 1
    assert counts.store["CREATE"] == 1
    assert counts.store["PART"] == 4
    assert volume.bucket.get("f") == bytes(range(256)) * 4096 * 30
