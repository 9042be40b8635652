"""Splits a stream of bytes into commands, for asyncio.BufferedProtocol, so that received bytes are not copied.

A receiver owns one buffer. It is small while the peer is idle, larger while it sends much, as large as an incomplete
frame requires, and small again afterwards.
"""

from struct import Struct as Layout
from typing import Final, Protocol

from delaymq.protocol.command import (
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    Command,
    decode_command,
    too_long_header,
)
from delaymq.protocol.errors import ProtocolError, TlsHandshakeError

IDLE_BUFFER_BYTES: Final = 16 * 1024
"""Buffer of an idle connection; it holds many small pipelined frames."""
BUSY_BUFFER_BYTES: Final = 64 * 1024
"""Buffer of a connection whose peer fills the idle buffer with one read, for fewer and larger reads."""
SMALL_READS: Final = 16
"""Number of consecutive reads that fit the idle buffer, after which the buffer shrinks to it."""
TRUSTED_BUFFER_BYTES: Final = 256 * 1024
"""A frame up to this size gets its whole buffer immediately. The buffer of a larger frame grows as its bytes arrive, so
that a peer cannot reserve the maximum with four bytes."""
MIN_FREE_BYTES: Final = 1024
"""With less free space after the received bytes, they are moved to the front, to avoid small reads."""

TLS_HANDSHAKE: Final = 0x16
"""First byte of a TLS handshake; a frame that starts with it would have 352 MiB."""


HTTP_RESPONSE: Final = int.from_bytes(b"HTTP", "big")
"""Start of an HTTP server's response to a frame, which it treats as a bad request."""


class BufferAccount(Protocol):
    """Account of the memory of large buffers."""

    @property
    def trusts_peers(self) -> bool:
        """Whether a frame up to TRUSTED_BUFFER_BYTES gets its whole buffer as soon as its length is known."""

    def resized(self, buffer_bytes: int) -> None:
        """Record the size of a buffer that exceeds BUSY_BUFFER_BYTES; 0 if it no longer does."""


_unpack_length = Layout(">I").unpack_from


def end_of_frames(data: bytes) -> int:
    """Return the position after the last complete one of the frames with which `data` begins."""
    at, last = 0, len(data) - 4
    while at <= last:
        end = at + 4 + int.from_bytes(data[at : at + 4])
        if end > len(data):
            break
        at = end
    return at


def decode_frames(data: bytes, at: int) -> tuple[list[Command], ProtocolError | None]:
    """Return the commands of complete frames from a position on, up to an invalid one, and its error."""
    commands: list[Command] = []
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4])
        try:
            commands.append(decode_command(data[at + 4 : end]))
        except ProtocolError as error:
            return commands, error
        at = end
    return commands, None


class FrameReceiver:
    """Collects bytes and returns commands; after a ProtocolError, it returns none.

    `error` is set as soon as invalid bytes are found, even while the valid commands before them are returned.
    """

    __slots__ = ("_buffer", "_end", "_small_reads", "_view", "account", "began", "error")

    def __init__(self, account: BufferAccount | None = None) -> None:
        self.account = account
        """Account of large buffers; None if they are not counted."""
        self._buffer = bytearray(IDLE_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._end = 0
        self._small_reads = 0
        self.began = False
        """Whether the peer has sent a complete frame."""
        self.error: ProtocolError | None = None

    @property
    def buffer_bytes(self) -> int:
        """Current size of the buffer."""
        return len(self._buffer)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the peer's next bytes, which is never empty. `sizehint` is ignored."""
        return self._view[self._end :]

    def begun(self, n: int) -> bytes:
        """Return a copy of the first received bytes, including `n` bytes written into `get_buffer()`.

        They begin with a complete frame, unless there is none of up to BUSY_BUFFER_BYTES: then none are returned.
        """
        end = min(self._end + n, BUSY_BUFFER_BYTES)
        if end < 4 or self.error is not None or 4 + _unpack_length(self._view)[0] > end:
            return b""
        return bytes(self._view[:end])

    def received(self, n: int, handled: int = 0) -> list[Command]:
        """Accept `n` bytes written into `get_buffer()`; return the commands that they complete.

        `handled` is the size of the frames at their start that have been handled, according to `begun`.
        ProtocolError for bytes that are not a frame; valid commands before them are returned first, and the error is
        raised by the next call.
        """
        if self.error is not None:
            raise self.error
        self._end += n
        commands: list[Command] = []
        try:
            self._cut(commands, handled)
        except ProtocolError as error:
            self.error = error
            # No more bytes are accepted, but the next read still needs a buffer.
            self._end = 0
            self._resize(IDLE_BUFFER_BYTES, 0)
            if not commands:
                raise
        return commands

    def drop(self) -> None:
        """Free the buffer at the end of the connection, before the garbage collector does."""
        self.account = None
        self._view = memoryview(b"")
        self._buffer = bytearray()
        self._end = 0

    def feed(self, data: bytes) -> list[Command]:
        """Accept bytes that are in memory; see `received`."""
        commands: list[Command] = []
        rest = memoryview(data)
        if not data:
            return self.received(0)
        while rest and not (commands and self.error is not None):
            buffer = self.get_buffer(len(rest))
            n = min(len(buffer), len(rest))
            buffer[:n] = rest[:n]
            rest = rest[n:]
            try:
                commands += self.received(n)
            except ProtocolError:
                if not commands:
                    raise
        return commands

    def _cut(self, commands: list[Command], start: int) -> None:
        view, end = self._view, self._end
        needed = 0
        while end - start >= 4:
            (length,) = _unpack_length(view, start)
            if length > MAX_FRAME_BYTES - 4:
                raise self._oversized(length, start, end)
            stop = start + 4 + length
            if stop > end:
                needed = 4 + length
                if end - start >= 8:
                    # Rejected before megabytes of it are received.
                    header_bytes = _unpack_length(view, start + 4)[0] & 0xFFFFFF
                    if header_bytes > MAX_HEADER_BYTES:
                        raise too_long_header(header_bytes)
                break
            commands.append(decode_command(view[start + 4 : stop]))
            start = stop
        if start:
            self.began = True
        rest = end - start
        self._end = rest
        capacity = len(self._buffer)
        wanted = self._wanted_bytes(capacity, end, needed, rest)
        if wanted != capacity:
            self._resize(wanted, start)
        elif start and rest:
            view[:rest] = view[start:end]

    def _wanted_bytes(self, capacity: int, end: int, needed: int, rest: int) -> int:
        """Return the next size of the buffer, after it held `end` bytes; the incomplete frame has `needed` bytes."""
        if needed > capacity:
            self._small_reads = 0
            return self._grown_bytes(needed, rest)
        if capacity == IDLE_BUFFER_BYTES:
            return BUSY_BUFFER_BYTES if end == capacity else capacity
        if end > IDLE_BUFFER_BYTES:
            self._small_reads = 0
        else:
            self._small_reads += 1
        wanted = max(needed, rest)
        if self._small_reads >= SMALL_READS and wanted < IDLE_BUFFER_BYTES:
            self._small_reads = 0
            return IDLE_BUFFER_BYTES
        return BUSY_BUFFER_BYTES if capacity > TRUSTED_BUFFER_BYTES and wanted < BUSY_BUFFER_BYTES else capacity

    def _grown_bytes(self, needed: int, rest: int) -> int:
        capacity = len(self._buffer)
        trusted = TRUSTED_BUFFER_BYTES if self.account is None or self.account.trusts_peers else 0
        if needed <= trusted:
            return max(needed, BUSY_BUFFER_BYTES)
        if rest < capacity - MIN_FREE_BYTES and capacity >= trusted:
            return capacity
        # Doubling copies at most as many bytes as were received.
        return min(needed, max(trusted, 2 * capacity))

    def _resize(self, capacity: int, start: int) -> None:
        rest = self._end
        buffer = bytearray(capacity)
        buffer[:rest] = self._view[start : start + rest]
        was_large = len(self._buffer) > BUSY_BUFFER_BYTES
        self._buffer = buffer
        self._view = memoryview(buffer)
        if self.account is not None and (was_large or capacity > BUSY_BUFFER_BYTES):
            self.account.resized(capacity if capacity > BUSY_BUFFER_BYTES else 0)

    def _oversized(self, length: int, start: int, end: int) -> ProtocolError:
        if length >> 24 == TLS_HANDSHAKE:
            return TlsHandshakeError(b"" if self.began or start else bytes(self._view[:end]))
        if length == HTTP_RESPONSE:
            return ProtocolError("the peer responds in HTTP: this port does not speak RocketMQ's protocol")
        return ProtocolError(
            f"a frame of {length} bytes exceeds the limit of {MAX_FRAME_BYTES} (is the peer speaking another protocol?)"
        )
