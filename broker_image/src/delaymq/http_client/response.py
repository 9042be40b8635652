"""Responses whose bodies are read in pieces or as a whole, within limits of time and size."""

import http.client
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import msgspec

from delaymq.api_types.base import Problem, Refusal

MAX_ERROR_BYTES: Final = 64 * 1024
_PIECE_BYTES: Final = 1 << 20


class AnswerTooLargeError(Exception):
    """The body exceeds the caller's limit."""


class AnswerCutError(OSError):
    """The connection ended before the end of the body."""


class Pace:
    """Time limits of a client, determined before each wait; here the same for all waits.

    A method raises TimeoutError when no time is left.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def connect_s(self, addresses: int) -> float:
        """Return the longest wait for the connection to each of `addresses` addresses, in seconds."""
        return self.seconds

    def wait_s(self) -> float:
        """Return the longest wait for the next bytes, in seconds."""
        return self.seconds

    def note_bytes(self, count: int) -> None:
        """Record that `count` bytes of a body have arrived."""


def problem_of(body: bytes) -> Problem:
    """Return the code and message of an error; both are empty if `body` is not in the form of a broker's error."""
    try:
        return msgspec.json.decode(body, type=Refusal).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Problem(code="", message="")


class Response:
    """Status and headers, and a body that is read within a `with` block.

    The connection is kept for the next request only if the body was read to its end.
    """

    def __init__(
        self, answer: http.client.HTTPResponse, wire: socket.socket, pace: Pace, disconnect: Callable[[], None]
    ) -> None:
        self.status = answer.status
        self.reason = answer.reason
        self.headers = answer.headers
        self._answer = answer
        self._wire = wire
        self._pace = pace
        self._disconnect = disconnect

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The rest of the body would be taken for the next response.
        if kind is not None or self._answer.will_close or not (self._answer.isclosed() or self.remaining == 0):
            self._disconnect()
        self._answer.close()

    @property
    def remaining(self) -> int | None:
        """Number of bytes still expected; None if the headers do not state the length."""
        return self._answer.length

    def read(self, most: int) -> bytes:
        """Return the next bytes as they arrive, at most `most`; none at the end. OSError, HTTPException."""
        if self._answer.isclosed():
            return b""
        self._wire.settimeout(self._pace.wait_s())
        try:
            piece = self._answer.read1(most)
        except http.client.IncompleteRead:
            raise AnswerCutError("the response ended early") from None
        if not piece and most and self.remaining:
            raise AnswerCutError(f"the response ended {self.remaining} bytes early")
        self._pace.note_bytes(len(piece))
        return piece

    def body(self, limit: int) -> bytes:
        """Return the whole body. AnswerTooLargeError above `limit` bytes, OSError, HTTPException."""
        pieces = []
        left = limit
        while piece := self.read(min(left + 1, _PIECE_BYTES)):
            pieces.append(piece)
            left -= len(piece)
            if left < 0:
                raise AnswerTooLargeError(f"exceeds {limit} bytes")
        return b"".join(pieces)

    def error_body(self) -> bytes:
        """Return at most MAX_ERROR_BYTES of the body, and nothing if the connection breaks."""
        pieces = []
        left = MAX_ERROR_BYTES
        try:
            while left and (piece := self.read(left)):
                pieces.append(piece)
                left -= len(piece)
        except (OSError, http.client.HTTPException):
            self._disconnect()
            return b""
        return b"".join(pieces)
