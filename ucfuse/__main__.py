"""`python -m ucfuse` is the same as the `ucfuse` command."""

import sys

from ucfuse.cli.main import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
