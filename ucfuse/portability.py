"""What Databricks' own mount of volumes refuses, and the modes in which this one refuses it too.

Words only: `fs.portability_log` decides when a request is one of these operations, and
`kernel.errnos` has the errno of each by mode.
"""

from enum import Enum

__all__ = ["Emulation", "Operation"]


class Emulation(Enum):
    """Whose behaviour programs meet."""

    POSIX = "posix"
    """Everything that an object store can do works; what would be refused elsewhere is noted."""
    DATABRICKS = "databricks"
    """As on the classic compute of Databricks."""
    SERVERLESS = "serverless"
    """As on its serverless compute."""

    @property
    def is_strict(self) -> bool:
        """Whether operations that are not portable are refused."""
        return self is not Emulation.POSIX


class Operation(Enum):
    """One kind of what is not portable, as reports name it."""

    APPEND = "append"
    """Writing behind what a file had before."""
    OVERWRITE = "overwrite"
    """Writing before the place that a handle has come to: seeking back, changing in place."""
    SPARSE = "sparse"
    """Writing or extending beyond the end, which leaves a hole."""
    SHORTEN = "shorten"
    """Cutting a file to less, but not to nothing."""
    LINK = "hard link"
    SYMLINK = "symbolic link"
    MKDIR = "mkdir above"
    """Making a directory where volumes, schemas and catalogs are."""
    RENAME = "rename across"
    """Moving a name from one volume to another."""
