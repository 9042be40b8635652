"""A NameServer's domain with a clock of the test's own, and brokers that speak to it: requests in, answers out."""

import json
import zlib
from dataclasses import dataclass, field
from typing import Any

from delaymq.config import NamesrvConfig
from delaymq.message.ids import pack_host
from delaymq.namesrv import open_name_server
from delaymq.namesrv.shares import Shares
from delaymq.protocol.bodies import DataVersion, RegisterBody, TopicConfig, TopicList, TopicTable
from delaymq.protocol.command import Command, Response, request_command
from delaymq.protocol.signatures import Signer

from delaymq_testing.step_runner import at_once


@dataclass
class Peer:
    id: int
    remote_address: str = "10.0.0.9:40000"
    is_private: bool = True

    def __post_init__(self) -> None:
        host, _, port = self.remote_address.rpartition(":")
        self.remote_host = pack_host(host, int(port))


def limited(shares: Shares, limit: int, host_limit: int | None = None) -> None:
    """Changes the limits of a table."""
    shares.limit, shares.host_limit = limit, limit if host_limit is None else host_limit


@dataclass
class World:
    """A NameServer, its clock, and brokers that speak to it."""

    now_ms: int = 1_000_000
    config: NamesrvConfig = field(default_factory=lambda: NamesrvConfig(kv_config_path=""))
    sessions: int = 0

    def __post_init__(self) -> None:
        self.server = open_name_server(self.config, lambda: self.now_ms, lambda: self.now_ms)

    def peer(self, host: str = "10.0.0.9") -> Peer:
        self.sessions += 1
        return Peer(self.sessions, f"{host}:40000")

    def ask(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b"", peer: Peer | None = None
    ) -> Response:
        return self.answer(peer or Peer(0), request_command(code, fields, body))

    def answer(self, peer: Peer, command: Command) -> Response:
        result = self.server.handle(peer, command)
        return result if isinstance(result, Response) else self.server.guarded(command.code, lambda: at_once(result))

    def reload_rules(self) -> None:
        """Read changed rule files, as the server does every 2 s."""
        assert self.server.rules is not None
        task = self.server.rules.reload_task()
        task.run()
        task.finish()

    def broker(self, name: str = "broker-a", **options: Any) -> "BrokerPeer":
        return BrokerPeer(self, name, **options)

    def route(self, topic: str) -> dict[str, Any] | None:
        answer = self.ask(105, {"topic": topic})
        assert answer.code in (0, 17), answer
        return json.loads(answer.body) if answer.code == 0 else None

    def permissions(self, topic: str) -> dict[str, int]:
        route = self.route(topic)
        return {} if route is None else {each["brokerName"]: each["perm"] for each in route["queueDatas"]}

    def topics(self, code: int = 206, **fields: str) -> list[str]:
        return sorted(TopicList.decode(self.ask(code, fields).body).topic_list)


@dataclass
class BrokerPeer:
    """One broker: registers, and can lose its connection."""

    world: World
    name: str
    address: str = ""
    broker_id: int = 0
    cluster: str = "C"
    account: tuple[str, str] | None = None
    """Access key and secret key with which it signs."""
    host: str = "10.0.0.9"
    more: dict[str, str] = field(default_factory=dict)
    """Fields of its registrations in addition to the usual ones."""

    def __post_init__(self) -> None:
        self.address = self.address or f"10.0.0.{sum(self.name.encode()) % 250}:10911"
        self.peer = self.world.peer(self.host)

    def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> Response:
        command = request_command(code, fields, body)
        if self.account is not None:
            Signer(self.account[1]).sign(command, self.account[0])
        return self.world.answer(self.peer, command)

    def register(
        self, *topics: str | TopicConfig, version: int = 1, compressed: bool = False, crc32: int | None = None
    ) -> Response:
        configs = [TopicConfig(each) if isinstance(each, str) else each for each in topics]
        table = TopicTable(DataVersion(version, 7), {each.topic_name: each for each in configs})
        body = RegisterBody(table)
        data = body.encode_compressed() if compressed else body.encode()
        fields = self.names() | {
            "haServerAddr": self.address.replace("10911", "10912"),
            "compressed": "true" if compressed else "false",
            "bodyCrc32": str(zlib.crc32(data) & 0x7FFFFFFF if crc32 is None else crc32),
        }
        return self.ask(103, fields | self.more, data)

    def names(self) -> dict[str, str]:
        return {
            "brokerName": self.name,
            "brokerAddr": self.address,
            "clusterName": self.cluster,
            "brokerId": str(self.broker_id),
        }

    def unregister(self) -> Response:
        return self.ask(104, self.names())

    def disconnect(self) -> None:
        self.world.server.session_closed(self.peer)
        self.peer = self.world.peer(self.host)
