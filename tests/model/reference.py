"""What a volume must look like after any operations: plain dicts, and no code of ucfuse.

`Reference` is one bucket as every client sees it, and one program's open files. Each method does
an operation and returns what it tells: bytes, a set of names, or the name of a failure.
"""

from dataclasses import dataclass, field

__all__ = ["CHANGED", "EXISTS", "FILLED", "MISSING", "OKAY", "Held", "Reference"]

OKAY, MISSING, EXISTS, FILLED, CHANGED = "okay", "missing", "exists", "filled", "changed"


@dataclass
class Held:
    """A file that a program has open; None as base: the name did not exist."""

    path: str
    mode: str
    data: bytes
    base: bytes | None
    is_dirty: bool
    seen: list[bytes] = field(default_factory=list)
    """Every content that its descriptor may show."""


@dataclass
class Reference:
    """Objects by path, and the directories that have a marker."""

    objects: dict[str, bytes] = field(default_factory=dict)
    directories: set[str] = field(default_factory=set)
    writer: Held | None = None
    reader: Held | None = None

    def has_parent(self, path: str) -> bool:
        parent = path.rpartition("/")[0]
        return not parent or parent in self.directories

    def is_held(self, path: str) -> bool:
        """Whether the program writes this file or one below this directory."""
        held = self.writer.path if self.writer is not None else None
        return held is not None and (held == path or held.startswith(path + "/"))

    def has_lost_base(self, path: str) -> bool:
        """Whether a file that is open and changed grew from a version that is gone by now."""
        held = self.writer
        if held is None or held.path != path or not held.is_dirty or held.mode == "w":
            return False
        return self.objects.get(path) != held.base

    # --- whole programs ----------------------------------------------------------------------

    def write(self, path: str, data: bytes, *, appends: bool) -> str:
        if not self.has_parent(path):
            return MISSING
        self._store(path, (self.objects.get(path, b"") if appends else b"") + data)
        return OKAY

    def patch(self, path: str, offset: int, data: bytes) -> str:
        if path not in self.objects:
            return MISSING
        self._store(path, _patched(self.objects[path], offset, data))
        return OKAY

    def truncate(self, path: str, size: int) -> str:
        if path not in self.objects:
            return MISSING
        self._store(path, self.objects[path][:size].ljust(size, b"\0"))
        return OKAY

    def may_read(self, path: str) -> list[bytes] | None:
        """Return what an open by name may read; None: there is no such file."""
        held, stored = self.writer, self.objects.get(path)
        if held is None or held.path != path or not held.is_dirty:
            return None if stored is None else [stored]
        if held.mode == "w" or stored == held.base:
            return [held.data]
        return [held.data] if stored is None else [held.data, stored]

    def names(self, directory: str) -> set[str]:
        base = directory + "/" if directory else ""
        paths = {*self.objects, *self.directories}
        if self.writer is not None and self.writer.is_dirty:
            paths.add(self.writer.path)
        return {path[len(base) :].split("/")[0] for path in paths if path.startswith(base)}

    def remove(self, path: str) -> str:
        return MISSING if self.objects.pop(path, None) is None else OKAY

    def rename(self, old: str, new: str) -> str:
        if old not in self.objects or not self.has_parent(new):
            return MISSING
        self.objects[new] = self.objects.pop(old)
        if self.reader is not None and old != new:
            names = {old: new, new: ""}
            self.reader.path = names.get(self.reader.path, self.reader.path)
        return OKAY

    def make_directory(self, path: str) -> str:
        if path in self.directories:
            return EXISTS
        self.directories.add(path)
        return OKAY

    def remove_directory(self, path: str) -> str:
        if path not in self.directories:
            return MISSING
        if self.names(path):
            return FILLED
        self.directories.remove(path)
        return OKAY

    def rename_directory(self, old: str, new: str) -> str:
        if old not in self.directories:
            return MISSING
        if old != new and self.names(new):
            return FILLED
        self.directories.remove(old)
        self.directories.add(new)
        for path in [path for path in self.objects if path.startswith(old + "/")]:
            self.objects[new + path[len(old) :]] = self.objects.pop(path)
        if self.reader is not None and self.reader.path.startswith(old + "/"):
            self.reader.path = new + self.reader.path[len(old) :]
        return OKAY

    # --- open files --------------------------------------------------------------------------

    def hold_reader(self, path: str) -> str:
        if path not in self.objects:
            return MISSING
        data = self.objects[path]
        self.reader = Held(path, "r", data, data, False, [data])
        return OKAY

    def hold_writer(self, path: str, mode: str) -> str:
        stored = self.objects.get(path)
        if not self.has_parent(path) or (stored is None and mode == "r+"):
            return MISSING
        is_dirty = mode == "w" or stored is None
        data = stored if stored is not None and mode != "w" else b""
        self.writer = Held(path, mode, data, stored, is_dirty)
        self._show_reader(path, data)
        return OKAY

    def write_held(self, offset: int, data: bytes) -> int:
        """Change the held file; return where the bytes went."""
        held = self.writer
        assert held is not None
        offset = len(held.data) if held.mode == "a" else min(offset, len(held.data))
        held.data, held.is_dirty = _patched(held.data, offset, data), True
        self._show_reader(held.path, held.data)
        return offset

    def close_writer(self) -> str:
        held, self.writer = self.writer, None
        if held is None or not held.is_dirty:
            return OKAY
        if held.mode != "w" and self.objects.get(held.path) != held.base:
            return CHANGED
        self._store(held.path, held.data)
        return OKAY

    def _store(self, path: str, data: bytes) -> None:
        self.objects[path] = data
        self._show_reader(path, data)

    def _show_reader(self, path: str, data: bytes) -> None:
        if self.reader is not None and self.reader.path == path:
            self.reader.seen.append(data)


def _patched(old: bytes, offset: int, data: bytes) -> bytes:
    return old[:offset].ljust(offset, b"\0") + data + old[offset + len(data) :]
