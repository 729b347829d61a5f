"""CRC64NVME by awscrt's native code: 9 GB/s on one core, measured. Used through `store.checksums`.

Pure functions on the bare numbers; nothing here knows of S3's headers.
"""

from awscrt import checksums

from ucfuse.store.api import Buffer

__all__ = ["combine", "compute"]


def compute(body: Buffer) -> int:
    """Return the checksum of these bytes."""
    return int(checksums.crc64nvme(body))


def combine(first: int, second: int, second_bytes: int) -> int:
    """Return the checksum of two runs of bytes from theirs, in no time."""
    return int(checksums.combine_crc64nvme(first, second, second_bytes))
