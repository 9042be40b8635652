"""Free ports on loopback."""

import contextlib
import socket

from harness.errors import HarnessError

ATTEMPTS = 50


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def free_broker_port() -> int:
    """A port that is free together with port − 2 (fast remoting) and port + 1 (replication)."""
    for _ in range(ATTEMPTS):
        port = free_port()
        with contextlib.ExitStack() as held:
            try:
                for neighbour in (port - 2, port, port + 1):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", neighbour))
            except OSError:
                continue
            return port
    raise HarnessError(f"no three free ports in a row after {ATTEMPTS} attempts")
