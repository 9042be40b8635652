"""Free ports on loopback. No port is given twice: who asked first may not have bound it yet."""

import contextlib
import socket

from harness.errors import HarnessError

ATTEMPTS = 50
_given: set[int] = set()


def free_port() -> int:
    """A port that nobody listens on now."""
    return _free_ports([0])


def free_broker_port() -> int:
    """A port that is free together with port − 2 (fast remoting) and port + 1 (replication)."""
    return _free_ports([-2, 0, 1])


def _free_ports(distances: list[int]) -> int:
    for _ in range(ATTEMPTS):
        with contextlib.ExitStack() as held:
            first = held.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            wanted = {port + distance for distance in distances}
            try:
                for other in wanted - {port}:
                    held.enter_context(socket.socket()).bind(("127.0.0.1", other))
            except OSError:
                continue
        if wanted.isdisjoint(_given):
            _given.update(wanted)
            return port
    raise HarnessError(f"no free ports at the distances {distances} after {ATTEMPTS} attempts")
