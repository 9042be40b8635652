"""Two tenants of a broker and a NameServer, and requests of one of them that name what belongs to the other.

Everything of a tenant has a name that begins with the tenant's word. For each request with such a name, there is a twin
with a name of the same length that does not exist. The responses must be the same, except for the names themselves.

The tests of clusters use this module in a pod, where only the packages of DelayMQ are installed.
"""

from __future__ import annotations

import re
import string
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from delaymq.broker.delivery.timed.requests import recall_handle
from delaymq.config import NamesrvConfig
from delaymq.message.properties import format_properties
from delaymq.protocol.codes import SEND_CODES, RequestCode
from delaymq.protocol.command import Command, Response, encode_response, request_command
from delaymq.protocol.signatures import Signer
from delaymq.server.standalone import Standalone
from delaymq.transport import RemotingConnection, connect

from delaymq_testing.broker.harness import broker_config
from delaymq_testing.hostile.words import HEADERS
from delaymq_testing.running_server import BROKER_FIELDS, CONNECT_TIMEOUT_MS, HOST, send_command, until

ALPHA, BRAVO, NOBODY = "alpha", "bravo", "omega"
"""The tenant whose names are to be hidden, the tenant that sends the requests, and names that do not exist."""
CLUSTER, BROKER = "market", "market-0"
"""Names that a Broker `market` has on Kubernetes."""
SHARED: Final = "Shared"
"""A topic that both tenants may use, each as its own groups."""
ADMIN: Final = "operators"
REGISTRAR: Final = "registrar"
RESPONSE_TIMEOUT_MS: Final = 20_000
HOUR_MS: Final = "3600000"

_TOPICS_OF_TENANT: Final = ("Orders", "Inherit", "New", "Missing")
RULES = "accounts:\n" + "".join(
    f"""\
- accessKey: {word}-account
  secretKey: {word}-account-secret
  topicPerms:
{"".join(f"  - {topic}=PUB|SUB{chr(10)}" for topic in (SHARED, *(f"{word}{name}" for name in _TOPICS_OF_TENANT)))}\
  groupPerms: [{word}Readers=SUB]
"""
    for word in (ALPHA, BRAVO)
)
RULES += f"""\
- {{accessKey: {ADMIN}, secretKey: {ADMIN}-secret, admin: true}}
- {{accessKey: {REGISTRAR}, secretKey: {REGISTRAR}-secret, brokerNames: [{BROKER}]}}
"""


@dataclass
class Tenant:
    """A tenant's account and what it has stored."""

    word: str
    slots: dict[str, str] = field(default_factory=dict)
    """Values for the slots of templates."""

    @property
    def key(self) -> str:
        return f"{self.word}-account"


class Signed:
    """A connection on which an account signs its requests. It responds to requests with its account's key."""

    def __init__(self, connection: RemotingConnection, key: str, secret: str) -> None:
        self._connection, self._key, self._signer = connection, key, Signer(secret)

    @classmethod
    async def connect(cls, port: int, key: str, *, host: str = HOST, secret: str = "") -> Signed:
        """Connect to a broker or NameServer. The secret key is KEY-secret by default."""

        def respond(connection: RemotingConnection, commands: list[Command]) -> None:
            for command in commands:
                if not command.is_oneway:
                    connection.send(encode_response(command, Response(body=b"said by " + key.encode())))

        connection = await connect(host, port, respond, timeout_ms=CONNECT_TIMEOUT_MS)
        return cls(connection, key, secret or f"{key}-secret")

    async def ask(self, command: Command) -> Command:
        self._signer.sign(command, self._key)
        return await self._connection.request(command, RESPONSE_TIMEOUT_MS)

    async def done(self, command: Command) -> Command:
        answer = await self.ask(command)
        assert answer.code == 0, (command.code, answer.remark)
        return answer


Ask = Callable[[Command], Awaitable[Command]]
"""Sends a request, and returns its response, whose code is 0."""


@asynccontextmanager
async def tenants(path: Path, *, metadata: str) -> AsyncIterator[tuple[Standalone, dict[str, Tenant]]]:
    """Both servers with one rule file, and both tenants with topics, groups, messages and clients."""
    rules, account = path / "plain_acl.yml", path / "account.yml"
    rules.write_text(RULES)
    account.write_text(f"accessKey: {REGISTRAR}\nsecretKey: {REGISTRAR}-secret\n")
    access: dict[str, Any] = {"acl_enable": True, "acl_config_path": str(rules), "acl_metadata": metadata}
    names = {"broker_name": BROKER, "broker_cluster_name": CLUSTER}
    config = broker_config(path / "store", **BROKER_FIELDS, **names, **access, namesrv_account_file=str(account))
    namesrv = NamesrvConfig(
        listen_port=0, kv_config_path="", namesrv_acl_config_path=str(rules), namesrv_acl_metadata=metadata
    )
    server = Standalone(config, namesrv)
    await server.start(http=False)
    try:
        await until(lambda: server.broker.registration.is_registered)
        of_broker = await Signed.connect(server.broker.port, ADMIN)
        of_namesrv = await Signed.connect(server.namesrv.port, ADMIN)
        both = {}
        for word in (ALPHA, BRAVO):
            client = await Signed.connect(server.broker.port, f"{word}-account")
            both[word] = await settled(word, client, of_broker.done, of_namesrv.done)
        yield server, both
    finally:
        await server.stop()


async def settled(word: str, client: Signed, of_broker: Ask, of_namesrv: Ask) -> Tenant:
    """Create what a tenant has, as its own clients and an administrator of the broker and the NameServer do."""
    tenant = Tenant(word)
    for topic, perm in ((f"{word}Orders", "6"), (f"{word}Inherit", "7"), (SHARED, "6")):
        fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": perm}
        await of_broker(request_command(17, fields | {"topicFilterType": "SINGLE_TAG", "order": "false"}))
    await client.done(request_command(34, {}, heartbeat(word, f"{word}Readers", f"{word}Orders", SHARED)))
    await client.done(send(f"{word}Orders", b"x" * 2_000))
    found = await client.done(send(f"{word}Orders", KEYS=f"{word}Key", TAGS=f"{word}Tag", UNIQ_KEY=f"{word}Id"))
    later: Any = {"TIMER_DELAY_MS": HOUR_MS, "DELAY_KEY": f"{word}DelayKey", "DELAY_GROUP": f"{word}DelayGroup"}
    await client.done(send(f"{word}Orders", UNIQ_KEY=f"{word}Pending", **later))
    await client.done(send(f"{word}Orders", UNIQ_KEY=f"{word}Level", DELAY="18"))
    await client.done(send(f"{word}Orders", sys_flag=4, TRAN_MSG="true", PGROUP=f"{word}Producers"))
    await client.done(send(SHARED))
    for topic in (f"{word}Orders", SHARED):
        queue = {"consumerGroup": f"{word}Readers", "topic": topic, "queueId": "0"}
        await client.done(request_command(15, queue | {"commitOffset": "1"}))
    offset = int(found.fields["msgId"][16:], 16)
    back = {"offset": str(offset), "group": f"{word}Readers", "delayLevel": "0"}
    await client.done(request_command(36, back))
    await client.done(request_command(41, {}, lock(f"{word}-client", f"{word}Readers", f"{word}Orders")))
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": f"{word}Orders", "value": f"{word}:4"}
    await of_namesrv(request_command(100, order))
    await of_namesrv(request_command(100, order | {"namespace": f"{word}Space"}))
    tenant.slots = slots_of(word, offset, found.fields["msgId"])
    return tenant


def slots_of(word: str, offset: int, message_id: str) -> dict[str, str]:
    """Return the values of a tenant's slots, or with another word those of names that do not exist."""
    return {
        **{name: f"{word}{name}" for name in ("Orders", "Inherit", "Readers", "Producers", "Key", "Id", "Pending")},
        **{name: f"{word}{name}" for name in ("DelayKey", "DelayGroup", "Space", "New", "Tag")},
        "client": f"{word}-client",
        "account": f"{word}-account",
        "offset": str(offset),
        "message": message_id,
        "handle": recall_handle(f"{word}Orders", BROKER, 1_900_000_000_000, f"{word}Pending"),
    }


def nobody(alpha: Tenant) -> dict[str, str]:
    """Return the twins of a tenant's values. Between two records, there is no record."""
    offset = int(alpha.slots["offset"]) + 8
    message = alpha.slots["message"]
    return slots_of(NOBODY, offset, f"{message[:16]}{offset:016X}")


def send(topic: str, body: bytes = b"", *, sys_flag: int = 0, **properties: Any) -> Command:
    """Request 310; the body begins with the tenant's word."""
    return send_command(topic, topic[:5].encode() + b"-body" + body, sys_flag=sys_flag, **properties)


def heartbeat(word: str, group: str, *topics: str) -> bytes:
    """Body of 34."""
    told = {"subString": f"{word}Tag", "subVersion": 1, "expressionType": "TAG"}
    subscriptions = [{"topic": topic, **told} for topic in topics]
    consumer = {"groupName": group, "consumeType": "CONSUME_PASSIVELY", "subscriptionDataSet": subscriptions}
    tree = {"clientID": f"{word}-client", "producerDataSet": [{"groupName": f"{word}Producers"}]}
    return msgspec.json.encode(tree | {"consumerDataSet": [consumer]})


def lock(client: str, group: str, topic: str) -> bytes:
    """Body of 41 and 42."""
    queue = {"brokerName": BROKER, "queueId": 0, "topic": topic}
    return msgspec.json.encode({"clientId": client, "consumerGroup": group, "mqSet": [queue]})


# Requests with slots

_SUBSCRIBED: Final = '{{"topic":"{Orders}","subString":"a > 5","expressionType":"SQL92","subVersion":1}}'
_LOCK: Final = (
    '{{"clientId":"{client}","consumerGroup":"{Readers}","mqSet":'
    f'[{{{{"brokerName":"{BROKER}","queueId":0,"topic":"{{Orders}}"}}}}]}}}}'
)
_BODIES: Final[Mapping[int, str]] = {
    25: "maxMessageSize=65536\n",
    34: '{{"clientID":"{client}","producerDataSet":[{{"groupName":"{Producers}"}}],"consumerDataSet":[{{"groupName":'
    '"{Readers}","consumeType":"CONSUME_PASSIVELY","subscriptionDataSet":[' + _SUBSCRIBED + "]}}]}}",
    41: _LOCK,
    42: _LOCK,
    46: '{{"clientId":"{client}","group":"{Readers}","subscriptionData":' + _SUBSCRIBED + "}}",
    103: '{{"topicConfigSerializeWrapper":{{"dataVersion":{{"counter":1,"timestamp":1}},"topicConfigTable":'
    '{{"{Orders}":{{"topicName":"{Orders}"}}}}}},"filterServerList":[]}}',
    200: '{{"groupName":"{Readers}","retryQueueNums":2}}',
    318: "orderMessageEnable=true\n",
    320: "",
    322: '{{"counter":1,"timestamp":1}}',
}
_FIELDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("topic", "b", "originTopic"), "{Orders}"),
    **dict.fromkeys(("consumerGroup", "group", "groupName", "srcGroup", "destGroup", "compareGroup"), "{Readers}"),
    **dict.fromkeys(("producerGroup", "a"), "{Producers}"),
    **dict.fromkeys(("clientId", "clientID", "clientAddr"), "{client}"),
    **dict.fromkeys(("offset", "commitLogOffset"), "{offset}"),
    **dict.fromkeys(("msgId", "originMsgId", "offsetMsgId"), "{message}"),
    **dict.fromkeys(("properties", "i"), "KEYS\1{Key}"),
    **dict.fromkeys(("defaultTopic", "c"), "TBW102"),
    **dict.fromkeys(("brokerName",), BROKER),
    **dict.fromkeys(("cluster", "clusterName"), CLUSTER),
    "filterGroups": "",
    "accessKey": "{account}",
    "secretKey": "{account}-secret",
    "globalWhiteAddrs": "10.0.0.9",
    "brokerAddr": "10.0.0.1:10911",
    "haServerAddr": "10.0.0.1:10912",
    "key": "{Key}",
    "namespace": "{Space}",
    "recallHandle": "{handle}",
    "transactionId": "{Id}",
    "topicFilterType": "SINGLE_TAG",
    "subscription": "*",
    "expressionType": "TAG",
    "statsName": "TOPIC_PUT_NUMS",
    "statsKey": "{Orders}",
    "value": "x",
    "endTimestamp": "9000000000000",
    "commitOrRollback": "8",
    "queueOffset": "0",
}
_NUMBERS: Final[Mapping[str, str]] = {"maxMsgNums": "32", "maxNum": "32", "count": "32", "d": "1", "limit": "10"}
_LEFT_OUT: Final = frozenset(
    {"topicPerms", "groupPerms", "defaultTopicPerm", "defaultGroupPerm", "whiteRemoteAddress", "groupTokens", "after"}
    | {"requireSecondSignature", "aclFileFullPath", "tag", "kind", "held", "fromMs", "untilMs", "level", "n"}
    | {"bodyCrc32", "epoch", "compressed", "maxReconsumeTimes", "unitMode", "batch", "m", "l", "k", "j", "admin"}
)
_SHARED_TOPICS: Final = (
    *("RMQ_SYS_TRACE_TOPIC", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC", "TBW102"),
    *("RMQ_SYS_TRANS_OP_HALF_TOPIC", "rmq_sys_delaymq_marks", f"{CLUSTER}_REPLY_TOPIC", "OFFSET_MOVED_EVENT"),
)
_TOPICS: Final = ("%RETRY%{Readers}", "%DLQ%{Readers}", "{New}", SHARED, *_SHARED_TOPICS)
_PROPERTIES: Final = (
    "DELAY_ACTION\1cancel\2DELAY_KEY\1{DelayKey}",
    "DELAY_ACTION\1fire\2DELAY_GROUP\1{DelayGroup}",
    "DELAY_ACTION\1cancel\2UNIQ_KEY\1{Pending}",
    "TIMER_DEL_UNIQKEY\1{Pending}",
    "TIMER_DELAY_MS\0013600000\2DELAY_KEY\1{DelayKey}",
    "RETRY_TOPIC\1{Orders}",
    "REAL_TOPIC\1{Orders}\2REAL_QID\0010",
    "UNIQ_KEY\1{Id}\2PGROUP\1{Producers}\2TRAN_MSG\1true",
)
_STATISTICS: Final = (
    ("GROUP_GET_NUMS", "{Orders}@{Readers}"),
    ("SNDBCK_PUT_NUMS", "{Orders}@{Readers}"),
    ("GROUP_GET_LATENCY", "0@{Orders}@{Readers}"),
    ("GROUP_GET_FALL_SIZE", "0@{Orders}@{Readers}"),
    ("GROUP_GET_FALL_TIME", "0@{Orders}@{Readers}"),
    ("TOPIC_PUT_SIZE", "SCHEDULE_TOPIC_XXXX"),
    ("QUEUE_PUT_NUMS", "SCHEDULE_TOPIC_XXXX@18"),
    ("BROKER_PUT_NUMS", CLUSTER),
)


@dataclass(frozen=True)
class Template:
    """A request whose fields and body have slots for names."""

    code: int
    fields: Mapping[str, str]
    body: str

    def slots(self) -> list[str]:
        texts = (*self.fields.values(), self.body)
        return sorted({name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name})

    def request(self, values: Mapping[str, str]) -> Command:
        fields = {name: text.format_map(values) for name, text in self.fields.items()}
        return request_command(self.code, fields, self.body.format_map(values).encode())


def templates(code: int) -> Iterator[Template]:
    """Yield requests of a code: with every field, and with other values for some."""
    header = HEADERS.get(code)
    infos = () if header is None else msgspec.structs.fields(header)
    base = {info.encode_name: _value(info) for info in infos if info.encode_name not in _LEFT_OUT}
    body = _BODIES.get(code, "{Orders}-text" if code in SEND_CODES else "")
    yield Template(code, base, body)
    optional = [info.encode_name for info in infos if info.default is None]
    if optional:
        yield Template(code, {name: text for name, text in base.items() if name not in optional}, body)
    for name in ("topic", "b"):
        for topic in _TOPICS if name in base else ():
            yield Template(code, base | {name: topic}, body)
    for name in ("properties", "i"):
        for properties in _PROPERTIES if name in base else ():
            yield Template(code, base | {name: properties}, body)
            yield Template(code, base | {name: properties, "topic" if name == "properties" else "b": _TOPICS[0]}, body)
    if code in SEND_CODES:
        # A number of 0 queues keeps the topic from being created.
        names = ("b", "c", "d") if "b" in base else ("topic", "defaultTopic", "defaultTopicQueueNums")
        missing = dict(zip(names, (f"{BRAVO}Missing", "{Inherit}", "0"), strict=True))
        yield Template(code, base | missing, body)
    if code == RequestCode.VIEW_BROKER_STATS_DATA:
        for name, key in _STATISTICS:
            yield Template(code, {"statsName": name, "statsKey": key}, body)
    if code == RequestCode.QUERY_MESSAGE:
        for key in ("{Id}", "{Pending}"):
            yield Template(code, base | {"key": key, "_UNIQUE_KEY_QUERY": "true"}, body)
    if "namespace" in base:
        yield Template(code, base | {"namespace": "ORDER_TOPIC_CONFIG", "key": "{Orders}"}, body)
    if code == RequestCode.QUERY_CORRECTION_OFFSET:
        yield Template(code, base | {"filterGroups": "{Readers}"}, body)


def _value(info: msgspec.structs.FieldInfo) -> str:
    name = info.encode_name
    kind = str(info.type)
    return _FIELDS.get(name) or _NUMBERS.get(name) or ("true" if "bool" in kind else "0" if "str" not in kind else "")


# Comparison

STORING: Final = SEND_CODES | {RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.HEART_BEAT}
"""Requests that keep names that they state. Members of a group have to respond to others' requests, too."""
_OF_STORED: Final = ("msgId", "queueOffset", "transactionId", "recallHandle")
"""Fields that differ between any two messages that were stored."""
_TIMES: Final = re.compile(rb'"asOfMs":\d+|"(?:lastUpdateTimestamp|tps)":[\d.]+')
"""Values that differ between any two responses."""


def content(answer: Command) -> bytes:
    """Return all of a response that can contain a name."""
    fields = {name: value for name, value in answer.fields.items() if name not in _OF_STORED}
    stated = f"{answer.code} {answer.remark} {format_properties(dict(sorted(fields.items())))}"
    return stated.encode() + _TIMES.sub(b"", answer.body)


def renamed(text: bytes, names: Mapping[str, str], twins: Mapping[str, str]) -> bytes:
    """Return a text with the names of a request replaced by those of its twin."""
    for slot, name in names.items():
        if slot in ("offset", "message", "handle"):
            text = text.replace(name.encode(), twins[slot].encode())
    return text.replace(ALPHA.encode(), NOBODY.encode())


@dataclass
class Checker:
    """Sends the requests of one code, and collects differences."""

    asking: Signed
    alpha: Tenant
    bravo: Tenant
    found: list[str] = field(default_factory=list)
    requests: int = 0
    refused: int = 0

    async def check(self, code: int) -> None:
        twins = nobody(self.alpha)
        for template in templates(code):
            slots = template.slots()
            await self._own(template)
            for foreign in ([*slots], *([slot] for slot in slots if len(slots) > 1)):
                if code in (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2) and foreign == [
                    "client"
                ]:
                    continue
                names = {slot: self.alpha.slots[slot] for slot in foreign}
                first = await self._answer(template, names)
                second = await self._answer(template, {slot: twins[slot] for slot in foreign})
                if renamed(first, names, twins) != second:
                    self.found.append(f"{template} with {names}: {first[:400]!r}, and of nobody {second[:400]!r}")

    async def _own(self, template: Template) -> None:
        said = await self._answer(template, {})
        if ALPHA.encode() in said:
            self.found.append(f"{template}: {said[:800]!r}")

    async def _answer(self, template: Template, names: Mapping[str, str]) -> bytes:
        self.requests += 1
        answer = await self.asking.ask(template.request({**self.bravo.slots, **names}))
        self.refused += "AclException" in (answer.remark or "")
        return content(answer)


async def check_codes(
    asking: Signed, alpha: Tenant, bravo: Tenant, codes: Iterable[int]
) -> tuple[int, dict[int, list[str]]]:
    """Check the requests of these codes; return their number, and the differences by code."""
    requests, found = 0, {}
    for code in sorted(codes, key=lambda code: (code in STORING, code)):
        checker = Checker(asking, alpha, bravo)
        await checker.check(code)
        requests += checker.requests
        if checker.found:
            found[code] = checker.found
    return requests, found
