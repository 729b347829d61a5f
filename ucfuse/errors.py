"""Every way in which the file system, a store or the start-up can say no.

Causes are raised below and become errnos in `kernel/errnos.py`, one row per cause; nothing else
in the core knows an errno. `ConfigError` belongs to the start-up and never reaches the kernel.
"""

from ucfuse.portability import Emulation, Operation

__all__ = [
    "AccessDenied",
    "AcrossVolumes",
    "AlreadyExists",
    "BadHandle",
    "ConfigError",
    "CorruptData",
    "CredentialsExpired",
    "DirectoryNotEmpty",
    "FileTooLarge",
    "InvalidArgument",
    "InvalidName",
    "IsADirectory",
    "NameNotUtf8",
    "NameTooLong",
    "NoSuchUpload",
    "NotADirectory",
    "NotInCatalog",
    "NotFound",
    "NotPermitted",
    "NotPortable",
    "NotSupported",
    "NotUnderstood",
    "ObjectChanged",
    "ObjectMissing",
    "OutcomeUnclear",
    "ReadOnlyVolume",
    "StagingFull",
    "StaleName",
    "StoreError",
    "StoreRefused",
    "StoreUnavailable",
    "Throttled",
    "Unauthenticated",
    "UnknownPlace",
    "VolumeError",
]


class VolumeError(Exception):
    """Anything the file system can say no with: what it is about, and the detail for the log."""

    def __init__(self, subject: str, detail: str = "") -> None:
        super().__init__(subject, detail)
        self.subject = subject
        self.detail = detail

    def __str__(self) -> str:
        name = type(self).__name__
        return f"{name}: {self.subject!r}" + (f": {self.detail}" if self.detail else "")


class NotFound(VolumeError):
    """No file or directory of this name."""


class AlreadyExists(VolumeError):
    """The name is taken."""


class NotADirectory(VolumeError):
    """A directory is needed, this is a file."""


class IsADirectory(VolumeError):
    """A file is needed, this is a directory."""


class DirectoryNotEmpty(VolumeError):
    """The directory still has names in it."""


class InvalidName(VolumeError):
    """No object can have this name."""


class NameTooLong(VolumeError):
    """The name is over 255 bytes or the key over 1,024 bytes."""


class NameNotUtf8(VolumeError):
    """Keys are UTF-8; these bytes are not."""


class InvalidArgument(VolumeError):
    """The operation does not exist in this form."""


class BadHandle(VolumeError):
    """The handle is not open, or not for this kind of access."""


class StaleName(VolumeError):
    """The inode no longer is what the name means; the kernel looks the name up again."""


class ReadOnlyVolume(VolumeError):
    """The volume is mounted read-only."""


class NotPermitted(VolumeError):
    """Hard links, symbolic links and devices cannot be objects."""


class AcrossVolumes(VolumeError):
    """A rename from one volume to another: programs copy and remove instead."""


class NotSupported(VolumeError):
    """Not in this case, though the operation as such exists."""


class NotPortable(VolumeError):
    """A strict mode refuses it, as Databricks' own mount does."""

    def __init__(self, subject: str, operation: Operation, emulation: Emulation) -> None:
        super().__init__(subject, f"{operation.value}, with --emulate {emulation.value}")
        self.operation = operation
        self.emulation = emulation

    def again(self) -> "NotPortable":
        """Return the same for a later request of the same handle."""
        return NotPortable(self.subject, self.operation, self.emulation)


class StagingFull(VolumeError):
    """The disk that holds written bytes until they are committed is full."""


class FileTooLarge(VolumeError):
    """Larger than an object can be (10,000 parts)."""


class StoreError(VolumeError):
    """The store's own ways to say no."""


class ObjectMissing(StoreError):
    """The store has no object under this key."""


class ObjectChanged(StoreError):
    """The key holds another version than the request asked for (412, or 404 on If-Match)."""


class NoSuchUpload(StoreError):
    """The multipart upload is gone, or lost against another request (409): all parts anew."""


class AccessDenied(StoreError):
    """The credentials do not allow it, or are not valid."""


class Throttled(StoreError):
    """The store asks to slow down (429, 503) or failed inside (5xx). It did answer."""


class StoreUnavailable(StoreError):
    """No usable answer: refused, cut, or silent past the deadline."""


class OutcomeUnclear(StoreError):
    """A request that changes the store may or may not have been carried out."""


class StoreRefused(StoreError):
    """The store refused for a reason that no retry can mend (other 4xx, 501)."""


class CredentialsExpired(StoreError):
    """The credentials have expired, and the catalog does not say whether there are others."""


class Unauthenticated(StoreError):
    """The catalog does not accept our token, or wants one (401)."""


class NotInCatalog(StoreError):
    """The catalog does not have, or does not have any more, what it had."""


class NotUnderstood(StoreError):
    """The catalog does not take the question (400): what it names cannot be a name, mostly."""


class UnknownPlace(StoreError):
    """The volume lies where this program cannot go: no S3, or keys of another kind."""


class CorruptData(StoreError):
    """The bytes are not those that the store's checksum or length tells of."""


class ConfigError(Exception):
    """The user's input or environment cannot work: the thing, the cause, the mend, in one line."""
