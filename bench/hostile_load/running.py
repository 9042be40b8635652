"""Execution of an attack: keeps the hostile client's connections busy with its frames."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time

from hostile_load.attacks import Attack, World, stolen_names

MAX_UNSENT = 64
"""Maximum number of unsent frames per connection."""


class Peer:
    """A connection that writes as fast as the broker reads."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=10)
        self.socket.setblocking(False)
        self.unsent = b""


def run(world: World, attack: Attack, seconds: float, connections: int) -> tuple[int, int, int]:
    """Keep `connections` busy for a time; return frames sent, responses with code 0, and connections lost."""
    frames = attack(world)
    port = world.namesrv_port if attack is stolen_names else world.port
    selector = selectors.DefaultSelector()
    sent = succeeded = cut_off = 0

    def connect() -> None:
        with contextlib.suppress(OSError):
            peer = Peer(world.host, port)
            selector.register(peer.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, peer)

    for _ in range(connections):
        connect()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        events = selector.select(0.05)
        if not events and len(selector.get_map()) < connections:
            connect()
        for key, mask in events:
            peer: Peer = key.data
            try:
                if mask & selectors.EVENT_READ:
                    data = peer.socket.recv(1 << 18)
                    if not data:
                        raise ConnectionResetError
                    succeeded += data.count(b'{"code":0,')
                if mask & selectors.EVENT_WRITE:
                    if not peer.unsent:
                        chunk = [next(frames)]
                        while len(chunk) < MAX_UNSENT and sum(map(len, chunk)) < 1 << 16 and chunk[-1]:
                            chunk.append(next(frames))
                        peer.unsent = b"".join(chunk)
                        sent += sum(map(bool, chunk))
                    if peer.unsent:
                        peer.unsent = peer.unsent[peer.socket.send(peer.unsent) :]
            except BlockingIOError:
                pass
            except OSError:
                cut_off += 1
                selector.unregister(peer.socket)
                peer.socket.close()
                connect()
    return sent, succeeded, cut_off
