"""A NameServer with rules under hostile requests: an honest broker, administrator and client continue."""

import copy
import logging
import random
from collections import Counter
from pathlib import Path

import pytest
from delaymq.config import NamesrvConfig
from delaymq.namesrv import PROCESSORS
from delaymq.namesrv.guard import BROKERS_CODES, GUARDED
from delaymq.namesrv.queries import OF_RULES
from delaymq.protocol.bodies import DataVersion, RegisterBody, TopicConfig, TopicRoute, TopicTable
from delaymq.protocol.command import Command, Response, encode_response, request_command
from delaymq.protocol.errors import ProtocolError
from delaymq.protocol.frame import FrameReceiver
from delaymq.protocol.second_signature import ConnectionKey, ConnectionSigner, challenge_in, challenge_request
from delaymq.protocol.signatures import Signer
from delaymq_testing.hostile.requests import HostileRequests
from delaymq_testing.hostile.words import TEXTS, TOPICS
from delaymq_testing.namesrv_world import Peer, World
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED

INPUTS = FUZZ_INPUTS // 4
HONEST_EVERY = 50
ADDRESS = "10.9.9.9:10911"
NONCE = bytes(range(16))
Account = tuple[str, str]
BROKER, ADMIN, HOSTILE = (
    (name, f"secret-of-{name}") for name in ("honest-broker", "administrator", "hostile-broker")
)  # fmt: skip
RULES = f"""\
accounts:
- {{accessKey: {BROKER[0]}, secretKey: {BROKER[1]}, brokerNames: [honest], requireSecondSignature: true}}
- {{accessKey: {ADMIN[0]}, secretKey: {ADMIN[1]}, admin: true}}
- {{accessKey: {HOSTILE[0]}, secretKey: {HOSTILE[1]}, brokerNames: [b]}}
unsignedBrokers: [10.6.0.0/16]
"""
VICTIMS = {
    "brokerName": [*TEXTS["brokerName"], "b", "b", "honest"],
    "brokerAddr": [*TEXTS["brokerAddr"], ADDRESS],
    "topic": [*TOPICS, "Honest", "Honest"],
    "namespace": [*TEXTS["namespace"], "Honest", "DELAYMQ"],
    "key": [*TEXTS["key"], "challenge"],
    "bodyCrc32": ["0"],
}

pytestmark = pytest.mark.timeout(120 + FUZZ_INPUTS // 100)


def signer_on(world: World, peer: Peer, account: Account) -> ConnectionSigner:
    """The second signature on a connection."""
    answer = world.answer(peer, challenge_request(NONCE))
    told = challenge_in(Command(answer.code, fields=answer.fields))
    assert told is not None
    return ConnectionSigner(ConnectionKey(*account, told[0], NONCE, told[1]), account[0])


class Honest:
    """A broker that registers, an administrator that puts a setting, and a client that asks for both."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.worked = 0
        self.captured: list[Command] = []
        self.connect()

    def connect(self) -> None:
        """Opens their connections, of which everybody can read what is sent."""
        self.peers = [self.world.peer("10.9.9.9"), self.world.peer("10.9.9.8")]
        for peer in self.peers:
            peer.is_private = False
        self.signers = [signer_on(self.world, *each) for each in zip(self.peers, (BROKER, ADMIN), strict=True)]

    def ask(self, who: int, code: int, body: bytes = b"", **fields: str) -> Response:
        command = request_command(code, fields, body)
        if code in GUARDED:
            self.signers[who].sign(command)
            self.captured = [*self.captured[-20:], copy.deepcopy(command)]
        answer = self.world.answer(self.peers[who], command)
        assert answer.code == 0, f"honest request {code}: {answer}"
        return answer

    def work(self) -> None:
        """A sign of life; the route is what was registered, and the setting what was put."""
        if self.worked:
            self.check_route()
        self.worked += 1
        self.queues = 1 + self.worked // 10
        table = TopicTable(DataVersion(self.queues, 7), {"Honest": TopicConfig("Honest", self.queues, self.queues, 6)})
        names = {"brokerName": "honest", "brokerAddr": ADDRESS, "clusterName": "H", "haServerAddr": "", "brokerId": "0"}
        self.ask(0, 103, RegisterBody(table).encode(), **names)
        self.check_route()
        self.ask(1, 100, namespace="Honest", key="k", value=str(self.worked))
        assert self.ask(1, 101, namespace="Honest", key="k").fields == {"value": str(self.worked)}
        if self.worked % 7 == 0:
            for peer in self.peers:
                self.world.server.session_closed(peer)
            self.connect()

    def check_route(self) -> None:
        """The broker's part of it; others that are registered may have the topic, too."""
        route = TopicRoute.decode(self.ask(0, 105, topic="Honest").body)
        data = [each.broker_addrs for each in route.broker_datas if each.broker_name == "honest"]
        assert data == [{0: ADDRESS}]
        found = [(each.read_queue_nums, each.perm) for each in route.queue_datas if each.broker_name == "honest"]
        assert found == [(self.queues, 6)]


class Hostile:
    """Connections with an account for one name, in a network whose brokers need none for names of nobody."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = random.Random(f"{SEED} rules, signatures")
        self.peers = [world.peer(host) for host in ("10.6.0.1", "10.6.0.2", "10.7.0.1", "10.7.0.2")]
        self.signers: dict[int, ConnectionSigner] = {}

    def send(self, command: Command) -> Response:
        """One request with a signature of some kind, or with none."""
        peer = self.chance.choice(self.peers)
        match self.chance.randrange(8):
            case 0 | 1:
                Signer(HOSTILE[1]).sign(command, HOSTILE[0])
            case 2 | 3:
                signer = self.signers.setdefault(peer.id, signer_on(self.world, peer, HOSTILE))
                signer.sign(command)
                if not self.chance.randrange(8):
                    command.fields["bname"] = "changed"
            case 4:
                key = self.chance.choice((BROKER[0], ADMIN[0], "nobody"))
                Signer(HOSTILE[1]).sign(command, key)
        return self.world.answer(peer, command)

    def replay(self, command: Command, peers: list[Peer]) -> Response:
        """What was captured, as it was or without one of its fields, over its own connections or one of `peers`."""
        command = copy.deepcopy(command)
        if not self.chance.randrange(3):
            del command.fields[self.chance.choice(list(command.fields))]
        return self.world.answer(self.chance.choice(self.peers + peers), command)

    def leave(self) -> None:
        """One connection ends."""
        at = self.chance.randrange(len(self.peers))
        self.world.server.session_closed(self.peers[at])
        self.signers.pop(self.peers[at].id, None)
        self.peers[at] = self.world.peer(self.peers[at].remote_address.partition(":")[0])


def test_hostile_requests_cannot_change_protected_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    path = tmp_path / "namesrv_acl.yml"
    path.write_text(RULES)
    world = World(config=NamesrvConfig(kv_config_path=str(tmp_path / "kv.json"), namesrv_acl_config_path=str(path)))
    honest, hostile = Honest(world), Hostile(world)
    weights = dict.fromkeys((103, 104), 6.0) | dict.fromkeys(GUARDED.keys() - BROKERS_CODES, 1.5)
    requests = HostileRequests(f"{SEED} rules", PROCESSORS, weights, texts=VICTIMS)
    served = Counter[int]()
    for number in range(INPUTS):
        if number % HONEST_EVERY == 0:
            world.now_ms += 1_000
            hostile.leave()
            world.server.expire()
            honest.work()
        frame = requests.frame(number)
        try:
            for command in FrameReceiver().feed(frame):
                answer = hostile.send(command)
                assert encode_response(command, answer)
                served[command.code] += answer.code == 0
            captured = hostile.chance.choice(honest.captured)
            assert hostile.replay(captured, honest.peers).code != 0 or captured.code not in GUARDED
        except ProtocolError:
            continue
        except Exception as error:
            raise AssertionError(f"input {number} of DELAYMQ_SEED={SEED}: {frame!r}") from error
        assert not caplog.records, f"input {number} of DELAYMQ_SEED={SEED}: {frame!r}: {caplog.text}"
    assert [code for code in (GUARDED.keys() - BROKERS_CODES) | OF_RULES if served[code]] == []
    if FUZZ_INPUTS >= 20_000:
        open_codes = PROCESSORS.keys() - GUARDED.keys() - OF_RULES
        assert [code for code in open_codes | BROKERS_CODES if not served[code]] == []
        reasons = ("unsigned", "unknown_key", "signature", "fields", "admin", "name", "owner")
        assert [reason for reason in reasons if not world.server.refused[reason]] == []
