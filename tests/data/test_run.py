"""`ucfuse run`: the page's imports mean `ucfuse.data`, and nothing else is different."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ucfuse.cli.main import main

ROOT = Path(__file__).parents[2]

SCRIPT = """
import multiprocessing, sys
import databricks.air.data
from databricks.air.data import DataLoader, UCVolumeDataset
import ucfuse.data

def tell(answers):
    import databricks.air.data
    answers.put(databricks.air.data is sys.modules["ucfuse.data"])

if __name__ == "__main__":
    print(databricks.air.data is ucfuse.data, ucfuse.data.__spec__.name, sys.argv[1:])
    for method in sys.argv[1:]:
        context = multiprocessing.get_context(method)
        answers = context.SimpleQueue()
        child = context.Process(target=tell, args=(answers,))
        child.start()
        child.join()
        print(method, child.exitcode, answers.get())
"""


def run(tmp_path: Path, script: str, *arguments: str, below: Path | None = None) -> tuple[int, str]:
    """Run a script under `ucfuse run`; return exit code and output."""
    path = tmp_path / "script.py"
    path.write_text(script)
    return finish(str(path), *arguments, below=below)


def finish(*arguments: str, below: Path | None = None) -> tuple[int, str]:
    paths = [str(ROOT), *([str(below)] if below else [])]
    done = subprocess.run(
        [sys.executable, "-m", "ucfuse", "run", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout


def package(directory: Path, name: str, text: str = "") -> None:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_name_means_ucfuse_data_here_and_in_spawned_children(tmp_path: Path) -> None:
    code, output = run(tmp_path, SCRIPT, "spawn", "forkserver")
    assert output.splitlines() == [
        "True ucfuse.data ['spawn', 'forkserver']",
        "spawn 0 True",
        "forkserver 0 True",
    ]
    assert code == 0


@pytest.mark.parametrize("kind", ["regular", "namespace"])
def test_other_packages_of_that_name_go_on_working(tmp_path: Path, kind: str) -> None:
    below = tmp_path / "site"
    package(below, "databricks/sql/__init__.py", "NAME = 'sql'")
    if kind == "regular":
        package(below, "databricks/__init__.py", "NAME = 'top'")
    code, output = run(
        tmp_path,
        "import databricks.air.data as data\nfrom databricks.sql import NAME\n"
        "print(data.__name__, NAME)",
        below=below,
    )
    assert (code, output) == (0, "ucfuse.data sql\n")


def test_an_installed_package_comes_first(tmp_path: Path) -> None:
    below = tmp_path / "site"
    package(below, "databricks/air/__init__.py")
    package(below, "databricks/air/data.py", "NAME = 'real'")
    script = "import databricks.air.data as data\nprint(data.NAME)"
    assert run(tmp_path, script, below=below) == (0, "real\n")


def test_an_installed_package_without_data_is_not_mixed_with_ours(tmp_path: Path) -> None:
    below = tmp_path / "site"
    package(below, "databricks/air/__init__.py")
    code, output = run(tmp_path, "import databricks.air.data", below=below)
    assert code == 1
    assert "ModuleNotFoundError: No module named 'databricks.air.data'" in output


def test_nothing_is_imported_before_the_name_is_used(tmp_path: Path) -> None:
    script = "import sys\nprint([m for m in sys.modules if m.split('.')[0] in ('torch', 'ucfuse')])"
    assert run(tmp_path, script) == (0, "[]\n")


def test_a_sitecustomize_that_is_there_already_still_runs(tmp_path: Path) -> None:
    below = tmp_path / "site"
    package(below, "sitecustomize.py", "import builtins; builtins.greeting = 'hello'")
    assert run(tmp_path, "print(greeting)", below=below) == (0, "hello\n")


def test_exit_codes_and_tracebacks_are_those_of_the_script(tmp_path: Path) -> None:
    assert run(tmp_path, "import sys\nsys.exit(7)") == (7, "")
    code, output = run(tmp_path, "def fail():\n    1 / 0\nfail()")
    assert code == 1
    plain = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, check=False
    )
    assert output == plain.stderr


def test_options_after_the_script_are_the_scripts(tmp_path: Path) -> None:
    script = "import sys\nprint(sys.argv[1:])"
    assert run(tmp_path, script, "--help", "-m", "x") == (0, "['--help', '-m', 'x']\n")


def test_a_module_runs_too(tmp_path: Path) -> None:
    package(tmp_path, "train/__main__.py", "import sys\nprint(__name__, sys.argv[1:])")
    code, output = finish("-m", "train", "--epochs", "3", below=tmp_path)
    assert (code, output) == (0, "__main__ ['--epochs', '3']\n")


def test_without_a_script_it_says_how_to_call_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run"])
    assert ended.value.code == 2
    assert "ucfuse run SCRIPT" in capsys.readouterr().err
