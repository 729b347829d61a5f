"""The README's promises and the tests that carry their numbers: the same set."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def promised() -> list[str]:
    """Return the numbers in the README's section, in order."""
    text = (ROOT / "README.md").read_text()
    section = text.split("\n## Promises\n")[1].split("\n## ")[0]
    return re.findall(r"(?:\*\*|\()(P\d+)(?:\*\*|\))", section)


def kept() -> Iterator[str]:
    """Yield the numbers that tests are marked with."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.promise":
                    assert node.name.startswith("test_"), node.name
                    yield from (ast.literal_eval(number) for number in mark.args)


def test_every_promise_has_a_test_and_every_number_a_promise() -> None:
    assert set(kept()) == set(promised())


def test_promises_are_numbered_in_order_and_no_number_comes_twice() -> None:
    numbers = [int(number[1:]) for number in promised()]
    assert numbers == sorted(set(numbers))
