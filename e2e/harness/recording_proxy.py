"""A proxy between a peer and a server that records request codes."""

import json
import socket
import threading
from contextlib import suppress
from typing import Self

CHUNK_BYTES = 64 * 1024
RESPONSE_FLAG = 1


class RecordingProxy:
    """A proxy on its own port, as a context manager. ``requests`` are (code, ext fields) in order."""

    def __init__(self, target_port: int, *, host: str = "127.0.0.1") -> None:
        self._target = (host, target_port)
        self._listener = socket.create_server((host, 0))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"{host}:{self.port}"
        self.requests: list[tuple[int, dict[str, str]]] = []
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def codes(self) -> list[int]:
        """Return the codes of all requests so far."""
        return [code for code, _ in list(self.requests)]

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                peer.close()  # as if nothing listened on the port
                continue
            self._sockets += [peer, server]
            threading.Thread(target=self._forward, args=(peer, server, True), daemon=True).start()
            threading.Thread(target=self._forward, args=(server, peer, False), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, is_noted: bool) -> None:
        pending = b""
        with suppress(OSError):
            while chunk := source.recv(CHUNK_BYTES):
                if is_noted:
                    pending = self._note(pending + chunk)
                target.sendall(chunk)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _note(self, data: bytes) -> bytes:
        """Record the complete frames of ``data`` and return the rest. Headers are JSON, Java's default."""
        while len(data) >= 8 and len(data) >= 4 + int.from_bytes(data[:4]):
            length, header_length = int.from_bytes(data[:4]), int.from_bytes(data[5:8])
            header = json.loads(data[8 : 8 + header_length])
            if not header["flag"] & RESPONSE_FLAG:
                self.requests.append((header["code"], header.get("extFields") or {}))
            data = data[4 + length :]
        return data
