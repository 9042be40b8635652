"""A client whose connection leads to a host that no longer exists, while the address already belongs to another one.

In Kubernetes, the Service of a group keeps its address when a node is lost. New connections reach the new master, and
the old connection is not closed by anyone.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest
from delaymq.client import Client, ClientError, Message, Producer, ProducerOptions
from harness.processes import ServerProcess
from replication.namespaces import Network, Node

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(120), pytest.mark.usefixtures("namespaces")]

NAMESRV_PORT, BROKER_PORT = 9876, 10911
ESTABLISHED = "01"
SEND_TIMEOUT_MS = 15_000
EARLY_S = 8.0
"""The kernel needs 5 s; without it, the send would end with its timeout."""


def test_send_moves_to_a_new_connection_when_the_host_of_the_old_one_is_gone(tmp_path: Path) -> None:
    with Network(tmp_path, ("broker", "client")) as network:
        host = network["broker"]
        command = [*host.launcher, sys.executable, "-m", "delaymq", "standalone", "--host", host.address,
                   "--store-path", str(tmp_path / "store")]  # fmt: skip
        server = ServerProcess("broker", command, tmp_path / "broker.log", environment={})
        server.start()
        try:
            took_s = network["client"].call(lambda: asyncio.run(_send_after_loss(host)))
        finally:
            server.kill()
    print(f"sent again after {took_s:.1f} s")
    assert took_s < EARLY_S


async def _send_after_loss(host: Node) -> float:
    """Send until it works, lose the connection, and return the seconds that the next send takes."""
    options = ProducerOptions(send_timeout_ms=SEND_TIMEOUT_MS)
    async with Client(f"{host.address}:{NAMESRV_PORT}") as client, Producer(client, "P", options) as producer:
        await _first_send(producer)
        _lose_connections(host)
        began = time.monotonic()
        await producer.send(_message())
        return time.monotonic() - began


async def _first_send(producer: Producer) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            await producer.send(_message())
            return
        except ClientError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


def _lose_connections(host: Node) -> None:
    """Drop all packets of the connections that clients of the broker have now."""
    ports = _client_ports(host)
    assert ports
    for port in ports:
        ends = ("--dport", str(BROKER_PORT), "--sport", str(port))
        host.run("iptables", "--wait", "--append", "INPUT", "--protocol", "tcp", *ends, "--jump", "DROP")


def _client_ports(host: Node) -> list[int]:
    """Return the ports of the other ends of established connections, from /proc/net/tcp (proc(5))."""
    ports = []
    for line in Path(f"/proc/{host.pid}/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        if state == ESTABLISHED and int(local.rpartition(":")[2], 16) == BROKER_PORT:
            ports.append(int(remote.rpartition(":")[2], 16))
    return ports


def _message() -> Message:
    return Message(topic="T", body=b"hello")
