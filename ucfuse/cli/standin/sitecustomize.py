"""Makes `databricks.air.data` mean `ucfuse.data` where no such package is installed.

Python imports this at its start when `ucfuse run` has put its directory into PYTHONPATH. It adds a
finder behind all others, so whatever is installed is found first: the real package, or any other
`databricks.*`, regular or namespace package. Then it makes way for the `sitecustomize` that this
one hides.

It imports nothing of ucfuse before the name is asked for.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

HERE = os.path.dirname(os.path.abspath(__file__))
# The directory that holds the package `ucfuse`, for a checkout that is not installed.
HOME = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))

TOP, PACKAGE, DATA = "databricks", "databricks.air", "databricks.air.data"
MARK = "ucfuse.standin"


class StandIn:
    """Finder and loader of the packages on the way to the name, and of the name itself."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for what nobody else has found."""
        if name in (TOP, PACKAGE):
            return ModuleSpec(name, self, origin=MARK, is_package=True)  # type: ignore[arg-type]
        if name == DATA and self._stands_for_parent():
            return ModuleSpec(name, self, origin=MARK)  # type: ignore[arg-type]
        return None

    @staticmethod
    def _stands_for_parent() -> bool:
        """Return whether `databricks.air` is ours: a real one without `data` stays as it is."""
        spec = getattr(sys.modules.get(PACKAGE), "__spec__", None)
        return spec is not None and spec.origin == MARK

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to the import system."""

    def exec_module(self, module: ModuleType) -> None:
        """Put `ucfuse.data` itself in the place of the name; the packages above it are empty."""
        if module.__name__ == DATA:
            if importlib.util.find_spec("ucfuse") is None:
                sys.path.append(HOME)
            sys.modules[DATA] = importlib.import_module("ucfuse.data")


def _run_hidden_sitecustomize() -> None:
    """Import the `sitecustomize` that would have been found without this one."""
    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


sys.meta_path.append(StandIn())
# Only the program's own directories stay in its path; children have theirs from PYTHONPATH.
sys.path[:] = [entry for entry in sys.path if entry != HERE]
_run_hidden_sitecustomize()
