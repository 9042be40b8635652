"""Files of the timeline in memory, of which a power loss keeps only what was synced."""

from __future__ import annotations

import errno


class MemoryFile:
    """One open file."""

    def __init__(self, folder: MemoryFiles, content: bytearray) -> None:
        self._folder = folder
        self.content = content
        self.synced: bytes | None = None

    def pread(self, count: int, position: int) -> bytes:
        return bytes(self.content[position : position + count])

    def pwrite(self, data: bytes, position: int) -> None:
        self._folder.write_bytes(len(data))
        if len(self.content) < position + len(data):
            self.content.extend(bytes(position + len(data) - len(self.content)))
        self.content[position : position + len(data)] = data

    def sync(self) -> None:
        self.synced = bytes(self.content)


class MemoryFiles:
    """A folder of files."""

    def __init__(self) -> None:
        self._files: dict[str, MemoryFile] = {}
        self._synced_names: set[str] = set()
        self.room: int | None = None
        """Bytes that can still be written; None: any number."""
        self.written = 0

    def write_bytes(self, count: int) -> None:
        if self.room is not None:
            if count > self.room:
                raise OSError(errno.ENOSPC, "no space")
            self.room -= count
        self.written += count

    def create(self, name: str) -> MemoryFile:
        file = self._files[name] = MemoryFile(self, bytearray())
        return file

    def open(self, name: str) -> MemoryFile:
        if name not in self._files:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        return self._files[name]

    def read(self, name: str) -> bytes | None:
        return bytes(self._files[name].content) if name in self._files else None

    def write(self, name: str, *parts: bytes) -> None:
        self.write_bytes(sum(map(len, parts)))
        file = self.create(name)
        file.content[:] = b"".join(parts)
        file.sync()

    def remove(self, name: str) -> None:
        self._files.pop(name, None)

    def names(self) -> list[str]:
        return sorted(self._files)

    def sync_names(self) -> None:
        self._synced_names = set(self._files)

    def lose_power(self) -> None:
        """Keeps the synced content of the files whose names were synced."""
        kept = {name: self._files[name] for name in self._files if name in self._synced_names}
        self._files = {}
        for name, file in kept.items():
            self._files[name] = MemoryFile(self, bytearray(file.synced or b""))
            self._files[name].synced = file.synced

    def damage(self, name: str, at: int) -> None:
        """Flips a bit of a file."""
        self._files[name].content[at] ^= 1
