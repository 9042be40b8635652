"""Selection of free ports on loopback.

They lie below the range from which the kernel takes outgoing ports, so none is taken between the choice and the
server's start. No port is returned twice: its first user may not have bound it yet.
"""

import contextlib
import os
import random
import socket

from harness.errors import HarnessError

# Above the default ports of RocketMQ, below net.ipv4.ip_local_port_range (32768 by default).
FIRST, END = 12_000, 32_000
SHARES = 8
"""Number of concurrent test processes that never choose the same port."""
ATTEMPTS = 500
_given: set[int] = set()
# Not seeded by the tests: two concurrent runs may have the same seed.
_random = random.SystemRandom()


def free_port() -> int:
    """Return a free port."""
    return _free_ports([0])


def free_broker_port(groups: int = 1) -> int:
    """Return a port that is free together with port − 2 (fast remoting) and port + 1 (replication).

    With several broker groups, the ports of each group are 10 above those of the previous one.
    """
    return _free_ports([10 * group + distance for group in range(groups) for distance in (-2, 0, 1)])


def _free_ports(distances: list[int]) -> int:
    share = (END - FIRST) // SHARES
    begin = FIRST + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % SHARES * share
    for _ in range(ATTEMPTS):
        port = begin - min(distances) + _random.randrange(share - max(distances) + min(distances))
        wanted = {port + distance for distance in distances}
        if wanted.isdisjoint(_given) and all(map(_is_free, wanted)):
            _given.update(wanted)
            return port
    raise HarnessError(f"no free ports at the distances {distances} after {ATTEMPTS} attempts")


def _is_free(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
