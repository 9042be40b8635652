"""A process that executes itself again keeps its ports: connections wait for the new program."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from delaymq.config import BrokerConfig
from delaymq.server.listening import PASSED_ON, Ports, port_of
from delaymq_testing.broker.harness import broker_config
from delaymq_testing.running_server import BROKER_FIELDS, HOST


def config(port: int, **changes: Any) -> BrokerConfig:
    return broker_config(Path("/nonexistent"), **(BROKER_FIELDS | {"listen_port": port, **changes}))


@pytest.fixture
def port() -> Iterator[int]:
    """Port on which a former program listens, and which it passed on with its fast port."""
    former = Ports.bind(config(0, fast_port_enable=True), http=False)
    former.main.listen()
    former.pass_on(HOST)
    former.close()
    yield port_of_passed_on()
    for each in os.environ.pop(PASSED_ON, "").split():
        os.close(int(each.rpartition(",")[2]))


def port_of_passed_on() -> int:
    return int(os.environ[PASSED_ON].split()[0].split(",")[1])


def test_connections_wait_for_the_next_program(port: int) -> None:
    with socket.create_connection((HOST, port), timeout=5) as early:
        ports = Ports.bind(config(port, fast_port_enable=True), http=False)
        try:
            assert PASSED_ON not in os.environ
            assert ports.fast is not None
            assert (port_of(ports.main), port_of(ports.fast)) == (port, port - 2)
            assert not ports.main.get_inheritable()
            accepted, address = ports.main.accept()
            accepted.close()
            assert address == early.getsockname()
        finally:
            ports.close()


def test_ports_that_the_next_program_does_not_use_are_closed(port: int) -> None:
    other = Ports.bind(config(0, fast_port_enable=True), http=False)
    passed_on = os.environ.pop(PASSED_ON)
    other_port = port_of(other.main)
    other.close()
    os.environ[PASSED_ON] = passed_on
    ports = Ports.bind(config(other_port, fast_port_enable=True), http=False)
    try:
        assert port_of(ports.main) == other_port
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, port), timeout=5)
    finally:
        ports.close()


@pytest.mark.parametrize("value", ["x", "127.0.0.1,1,99999999", "127.0.0.1,x,0 ,,"])
def test_values_that_name_no_sockets_have_no_effect(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSED_ON, value)
    ports = Ports.bind(config(0), http=False)
    free = port_of(ports.main)
    ports.close()
    monkeypatch.setenv(PASSED_ON, value)
    Ports.bind(config(free), http=False).close()
