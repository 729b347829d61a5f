"""What a dataset counts: plain numbers, added up over workers by the loader."""

import logging
from dataclasses import asdict, dataclass, fields

from ucfuse.data.cache import Found, How

__all__ = ["Counters"]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counters:
    """Counts of one process."""

    files: int = 0
    """Paths handed out."""
    hits: int = 0
    """Of these, copies that were there already."""
    misses: int = 0
    """Of these, copied from the volume by this process."""
    passed: int = 0
    """Of these, paths on the volume itself: there was no room for a copy."""
    skipped: int = 0
    """Files left out because of an error, with `on_error="skip"`."""
    retries: int = 0
    """Passing errors after which a file was tried again."""
    bytes: int = 0
    """Bytes copied from the volume."""

    def count(self, found: Found) -> None:
        """Count one path that is handed out."""
        self.files += 1
        if found.how is How.HIT:
            self.hits += 1
        elif found.how is How.COPIED:
            self.misses += 1
            self.bytes += found.size
        else:
            self.passed += 1

    def count_retry(self, error: OSError) -> None:
        """Count one passing error."""
        self.retries += 1
        log.info("trying again: %s", error)

    def add(self, other: "Counters") -> None:
        """Add the counts of another process."""
        for field in fields(self):
            total = getattr(self, field.name) + getattr(other, field.name)
            setattr(self, field.name, total)

    def as_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return asdict(self)
