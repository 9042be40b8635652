"""Access to the ports of a Broker, tried from pods: the documented matrix if the network enforces policies.

The networks of the clusters created here enforce none. That is no reason to skip: the test determines whether policies
are enforced, records it, and expects either the matrix or unrestricted access.
"""

import time
from collections.abc import Callable

import pytest
from kind.space import Space

pytestmark = pytest.mark.timeout(300)

CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3).close()
    print("open")
except ConnectionRefusedError:
    print("refused")
except OSError:
    print("closed")
"""
CLOSED_PORT = 9
SETTLING_S = 20.0
"""Time within which a network applies a policy."""
PORTS = (("demo-broker-0-0", 10911), ("demo-broker-0-0", 10909), ("demo-broker-0-0", 8080), ("demo-namesrv-0", 9876),
         ("demo-namesrv-0", 8081))  # fmt: skip
# Columns as PORTS; see docs/operations/kubernetes.md, below "networkPolicy: {enabled: true}" and "allowFrom …":
DEFAULT: dict[str, tuple[bool, ...]] = {
    "inside": (True, True, False, True, False),
    "outside": (False, False, False, False, False),
}
NARROWED: dict[str, tuple[bool, ...]] = {
    "inside": (False, False, False, False, False),
    "outside": (False, False, True, False, True),
}

DENY_ALL = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "deny-all"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
}


def test_access_from_pods_matches_the_documented_matrix(
    spaces: Callable[..., Space], note: Callable[..., None]
) -> None:
    inside, outside = spaces("policies"), spaces("policies-far")
    # Without a schedule no run starts, so no Spark operator is needed.
    inside.broker_ready(size=1, analytics={})
    assert inside.broker()["status"]["defaults"] == 2
    for name in ("demo-broker", "demo-namesrv", "demo-analytics"):
        inside.get("networkpolicy", name)
    outside.wait_client()
    enforced = _is_enforced(inside, outside)
    note(enforced=enforced)
    print(f"the cluster's network {'enforces' if enforced else 'does not enforce'} network policies")
    seen = {"default": _matrix(inside, outside, DEFAULT, enforced)}
    allowed = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": outside.name}}}
    nobody = {"podSelector": {"matchLabels": {"app": "orders"}}}
    policy = {"enabled": True, "allowFrom": [nobody], "allowMetricsFrom": [allowed]}
    inside.patch("broker.delaymq.io", "demo", {"spec": {"networkPolicy": policy}})
    inside.wait_broker_ready()
    seen["narrowed"] = _matrix(inside, outside, NARROWED, enforced)
    note(**seen)


def _matrix(inside: Space, outside: Space, page: dict[str, tuple[bool, ...]], enforced: bool) -> dict[str, list[bool]]:
    """Return the access of both clients, once it is as expected or the network had enough time."""
    expected = {row: list(cells) if enforced else [True] * len(PORTS) for row, cells in page.items()}
    until = time.monotonic() + SETTLING_S
    while True:
        found = {
            row: [_connect(space, inside.pod_ip(pod), port) == "open" for pod, port in PORTS]
            for row, space in (("inside", inside), ("outside", outside))
        }
        if found == expected or time.monotonic() > until:
            assert found == expected
            return found


def _is_enforced(inside: Space, outside: Space) -> bool:
    """Return whether policies are enforced: without one, a connection to a closed port is refused by the pod itself."""
    address = outside.pod_ip(outside.client.name)
    assert _connect(inside, address, CLOSED_PORT) == "refused"
    outside.apply(DENY_ALL)
    until = time.monotonic() + SETTLING_S
    while time.monotonic() < until:
        if _connect(inside, address, CLOSED_PORT) != "refused":
            outside.kubectl("delete", "networkpolicy", "deny-all")
            return True
    outside.kubectl("delete", "networkpolicy", "deny-all")
    return False


def _connect(space: Space, address: str, port: int) -> str:
    command = ("exec", space.client.name, "--", "python3.11", "-c", CONNECT, address, str(port))
    return str(space.kubectl(*command)).strip()
