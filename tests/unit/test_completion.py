"""Shell completion: every shell takes the script, and completes commands and options."""

import shutil
import subprocess
from pathlib import Path

import pytest

from ucfuse.cli.main import COMMANDS, main

ASK_BASH = """
source "$1"; shift
COMP_WORDS=(ucfuse "$@"); COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
COMP_LINE="${COMP_WORDS[*]}"; COMP_POINT=${#COMP_LINE}
function=$(complete -p ucfuse | sed 's/.*-F \\([^ ]*\\).*/\\1/')
"$function" ucfuse "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", shell]) == 0
    path = tmp_path / f"ucfuse.{shell}"
    path.write_text(capsys.readouterr().out)
    return path


def bash(path: Path, *words: str) -> set[str]:
    done = subprocess.run(
        ["bash", "-c", ASK_BASH, "bash", path, *words],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return set(done.stdout.split())


def test_bash_completes_commands_and_their_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """README, completion."""
    path = script("bash", tmp_path, capsys)
    assert bash(path, "") >= set(COMMANDS)
    assert bash(path, "st") == {"status"}
    assert {"--watch", "--json"} <= bash(path, "status", "--")
    assert bash(path, "mount", "--metadata-tt") == {"--metadata-ttl"}
    assert bash(path, "cp", "--qui") == {"--quiet"}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_take_the_script(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script(shell, tmp_path, capsys)
    text = path.read_text()
    for name in COMMANDS:
        assert name in text
    assert "metadata-ttl" in text
    if shutil.which(shell):  # its own judgement; the words above hold without it
        done = subprocess.run([shell, "-n", path], capture_output=True, timeout=30, check=False)
        assert (done.returncode, done.stderr) == (0, b"")


def test_a_shell_that_we_do_not_know_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", "csh"])
    assert ended.value.code == 2
    assert "invalid choice" in capsys.readouterr().err
