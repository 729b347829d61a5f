"""What a copy has found, done and failed to do so far. Plain numbers, for whoever shows them."""

from dataclasses import dataclass, field

from ucfuse.copying.trees import Trouble

__all__ = ["Tally"]

# Each is a line for the user; what goes beyond is counted, so that memory stays bounded.
MOST_TROUBLES = 10_000


@dataclass(slots=True)
class Tally:
    """Counts of one copy. `is_listed`: all that is to be done has been found."""

    found_files: int = 0
    found_bytes: int = 0
    is_listed: bool = False
    copied_files: int = 0
    moved_bytes: int = 0
    same_files: int = 0
    same_bytes: int = 0
    removed: int = 0
    failed_count: int = 0
    failures: list[Trouble] = field(default_factory=list)

    @property
    def done_files(self) -> int:
        """Files that nothing is left to do for."""
        return self.copied_files + self.same_files + self.failed_count

    @property
    def done_bytes(self) -> int:
        """Bytes that need not be moved any more."""
        return self.moved_bytes + self.same_bytes

    def failed(self, trouble: Trouble) -> None:
        """Note what was not copied, and why."""
        self.failed_count += 1
        if len(self.failures) < MOST_TROUBLES:
            self.failures.append(trouble)
