"""Fuzzed requests to a NameServer get intended responses, and other brokers keep their routes."""

import logging
from collections import Counter
from pathlib import Path

import pytest
from delaymq.config import NamesrvConfig
from delaymq.namesrv import PROCESSORS, NameServer, open_name_server
from delaymq.namesrv.queries import OF_RULES
from delaymq.protocol.bodies import DataVersion, RegisterBody, TopicConfig, TopicRoute, TopicTable
from delaymq.protocol.command import Command, Response, encode_response, request_command
from delaymq.protocol.errors import ProtocolError
from delaymq.protocol.frame import FrameReceiver
from delaymq_testing.hostile.requests import HostileRequests
from delaymq_testing.namesrv_world import Peer
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED
from delaymq_testing.step_runner import at_once

INPUTS = FUZZ_INPUTS // 4
ADDRESS = "10.9.9.9:10911"

pytestmark = pytest.mark.timeout(120 + FUZZ_INPUTS // 100)


class Honest:
    """A broker that registers, and a client that asks for its route."""

    def __init__(self, server: NameServer) -> None:
        self.server = server
        self.peer = Peer(100)
        self.registered = 0

    def ask(self, code: int, body: bytes = b"", **fields: str) -> Response:
        answer = answer_of(self.server, self.peer, request_command(code, fields, body))
        assert answer.code == 0, f"honest request {code}: {answer}"
        return answer

    def work(self) -> None:
        """Occasionally register with one more topic; the route must equal the registration."""
        self.registered += 1
        queues = 1 + self.registered // 10
        # Others ask for Orders, and delete it.
        topics = {name: TopicConfig(name, queues, queues, 6) for name in ("Honest", "Orders")}
        table = TopicTable(DataVersion(queues, 7), topics)
        names = {"brokerName": "honest", "brokerAddr": ADDRESS, "clusterName": "H", "haServerAddr": "", "brokerId": "0"}
        self.ask(103, RegisterBody(table).encode(), **names)
        route = TopicRoute.decode(self.ask(105, topic="Honest").body)
        assert [(data.broker_name, data.broker_addrs) for data in route.broker_datas] == [("honest", {0: ADDRESS})]
        assert [(each.broker_name, each.read_queue_nums, each.perm) for each in route.queue_datas] == [
            ("honest", queues, 6)
        ]
        self.ask(100, namespace="Honest", key="k", value=str(self.registered))
        assert self.ask(101, namespace="Honest", key="k").fields == {"value": str(self.registered)}


def answer_of(server: NameServer, peer: Peer, command: Command) -> Response:
    """The answer, with a change of a file made."""
    result = server.handle(peer, command)
    return result if isinstance(result, Response) else server.guarded(command.code, lambda: at_once(result))


def test_every_request_gets_an_intended_response(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    now_ms = 1_700_000_000_000
    config = NamesrvConfig(kv_config_path=str(tmp_path / "kv.json"))
    server = open_name_server(config, lambda: now_ms, lambda: now_ms)
    honest = Honest(server)
    requests = HostileRequests(f"{SEED} namesrv", PROCESSORS, {103: 5.0, 105: 3.0, 100: 0.3, 102: 0.3, 318: 0.3})
    served = Counter[int]()
    for number in range(INPUTS):
        frame = requests.frame(number)
        try:
            for command in FrameReceiver().feed(frame):
                answer = answer_of(server, Peer(number % 5), command)
                assert encode_response(command, answer)
                served[command.code] += answer.code == 0
        except ProtocolError:
            served[-1] += 1
        except Exception as error:
            raise AssertionError(f"input {number} of DELAYMQ_SEED={SEED}: {frame!r}") from error
        assert not caplog.records, f"input {number} of DELAYMQ_SEED={SEED}: {frame!r}: {caplog.text}"
        if number % 50 == 0:
            now_ms += 1_000
            server.session_closed(Peer(number % 5))
            server.expire()
            honest.work()
    # Without rules, nobody may query them.
    assert not any(served[code] for code in OF_RULES)
    assert [int(code) for code in PROCESSORS.keys() - OF_RULES if not served[code]] == [] or FUZZ_INPUTS < 20_000
    assert served[-1]
    again = open_name_server(config, lambda: now_ms)
    assert again.kv.get("Honest", "k") == str(honest.registered)
