"""The one table from causes to errnos, and what the strict modes answer instead.

The adapter's guard is the only user; nothing else in the core knows an errno. The table has one row
per cause, and one per operation that is not portable; a test proves that none is missing.
"""

import errno
from collections.abc import Mapping
from types import MappingProxyType

from ucfuse.errors import (
    AccessDenied,
    AcrossVolumes,
    AlreadyExists,
    BadHandle,
    CorruptData,
    CredentialsExpired,
    DirectoryNotEmpty,
    FileTooLarge,
    InvalidArgument,
    InvalidName,
    IsADirectory,
    NameNotUtf8,
    NameTooLong,
    NoSuchUpload,
    NotADirectory,
    NotFound,
    NotInCatalog,
    NotPermitted,
    NotPortable,
    NotSupported,
    NotUnderstood,
    ObjectChanged,
    ObjectMissing,
    OutcomeUnclear,
    ReadOnlyVolume,
    StagingFull,
    StaleName,
    StoreRefused,
    StoreUnavailable,
    Throttled,
    Unauthenticated,
    UnknownPlace,
    VolumeError,
)
from ucfuse.portability import Emulation, Operation

__all__ = ["EMULATED_ERRNOS", "ERRNOS", "errno_for"]

ERRNOS: Mapping[type[VolumeError], int] = MappingProxyType(
    {
        NotFound: errno.ENOENT,
        NotInCatalog: errno.ENOENT,
        AlreadyExists: errno.EEXIST,
        NotADirectory: errno.ENOTDIR,
        IsADirectory: errno.EISDIR,
        DirectoryNotEmpty: errno.ENOTEMPTY,
        InvalidName: errno.EINVAL,
        InvalidArgument: errno.EINVAL,
        NameTooLong: errno.ENAMETOOLONG,
        NameNotUtf8: errno.EILSEQ,
        BadHandle: errno.EBADF,
        ReadOnlyVolume: errno.EROFS,
        AccessDenied: errno.EACCES,
        CredentialsExpired: errno.EACCES,
        Unauthenticated: errno.EACCES,
        NotPermitted: errno.EPERM,
        NotSupported: errno.EOPNOTSUPP,
        UnknownPlace: errno.EOPNOTSUPP,
        AcrossVolumes: errno.EXDEV,
        StagingFull: errno.ENOSPC,
        FileTooLarge: errno.EFBIG,
        # Inside open(2) the kernel answers ESTALE by looking the name up again.
        StaleName: errno.ESTALE,
        ObjectChanged: errno.ESTALE,
        ObjectMissing: errno.ESTALE,
        CorruptData: errno.EIO,
        StoreRefused: errno.EIO,
        NotUnderstood: errno.EIO,
        NoSuchUpload: errno.EIO,
        # The store may well answer the next time: programs may repeat opens and metadata calls.
        Throttled: errno.EAGAIN,
        StoreUnavailable: errno.EAGAIN,
        OutcomeUnclear: errno.EAGAIN,
    }
)


EMULATED_ERRNOS: Mapping[Operation, Mapping[Emulation, int]] = MappingProxyType(
    {
        operation: {Emulation.DATABRICKS: classic, Emulation.SERVERLESS: serverless}
        for operation, classic, serverless in (
            (Operation.APPEND, errno.EOPNOTSUPP, errno.ESPIPE),
            (Operation.OVERWRITE, errno.EOPNOTSUPP, errno.EIO),
            (Operation.SPARSE, errno.EOPNOTSUPP, errno.EOPNOTSUPP),
            (Operation.SHORTEN, errno.EOPNOTSUPP, errno.EOPNOTSUPP),
            # Of link(2) the kernel makes EPERM, and does not ask again.
            (Operation.LINK, errno.ENOSYS, errno.ENOSYS),
            (Operation.SYMLINK, errno.ENOSYS, errno.ENOSYS),
            (Operation.MKDIR, errno.EOPNOTSUPP, errno.EOPNOTSUPP),
            (Operation.RENAME, errno.EINVAL, errno.EINVAL),
        )
    }
)


def errno_for(cause: VolumeError, *, moves_data: bool) -> int:
    """Return the errno that tells a program of `cause`.

    `moves_data`: the request is a read, write, flush or fsync. These never get EAGAIN: Python
    takes it for the end of the data, and the program would go on with half a file and no error.
    """
    if isinstance(cause, NotPortable):
        return EMULATED_ERRNOS[cause.operation][cause.emulation]
    answer = ERRNOS.get(type(cause), errno.EIO)
    return errno.EIO if moves_data and answer == errno.EAGAIN else answer
