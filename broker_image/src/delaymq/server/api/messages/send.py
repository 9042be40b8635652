"""POST /api/v1/topics/{topic}/messages: send a message.

All rules are those of a send over the remoting protocol, because the same function stores the message.
"""

from base64 import urlsafe_b64decode
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from aiohttp import web
from msgspec import UNSET

from delaymq.api_types.sends import SendBody, Sent
from delaymq.broker.processors.send import send_one
from delaymq.message import names
from delaymq.message.ids import UniqueIds, pack_host, unpack_host
from delaymq.message.properties import format_properties, is_storable
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq.protocol.credential_fields import ACCESS_KEY
from delaymq.protocol.errors import RequestError
from delaymq.protocol.headers import SendMessageRequestHeader
from delaymq.server.api.messages.large_bodies import LargeBodies
from delaymq.server.api.routing import ApiError, Query
from delaymq.server.http.responses import decode_json
from delaymq.server.http.sign_in.accounts import caller_of
from delaymq.server.http.sign_in.peers import peer_of
from delaymq.store.errors import RecordTooLargeError, StoreError
from delaymq.transport.addresses import host_and_port

if TYPE_CHECKING:
    from delaymq.broker.quotas.usage import AccountUsage
    from delaymq.server.broker_server import BrokerServer

_PRODUCER_GROUP: Final = "HTTP"
_NEW_TOPIC_QUEUES: Final = 4
"""Maximum number of queues of a topic that a send creates, as with RocketMQ's clients."""
_SESSION_ID: Final = 0
"""Ids of remoting connections start at 1."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EXAMPLE: Final = '{"body": "text", "keys": ["order-1"], "delayMs": 60000}'
_SHOWN_CHARACTERS: Final = 64
"""Maximum length of a client's text that an error repeats."""
_RESERVED: Final = frozenset(
    {
        names.KEYS, names.TAGS, names.WAIT, names.DELAY, names.RETRY_TOPIC, names.REAL_TOPIC, names.REAL_QUEUE_ID,
        names.TRANSACTION_PREPARED, names.PRODUCER_GROUP, names.ORIGIN_MESSAGE_ID, names.UNIQUE_KEY, names.CLUSTER,
        names.MSG_REGION, names.TRACE_ON, names.START_DELIVER_TIME, names.DELAY_KEY, names.DELAY_ON_SAME_KEY,
        names.DELAY_EXPIRE_MS, names.DELAY_ACTION, names.DELAY_GROUP, names.DELAY_SCHEDULE_ID,
        names.DELAY_RUN, *names.SCHEDULE_PROPERTIES,
    }
)  # fmt: skip
"""Properties that brokers and clients set."""
_RESERVED_PREFIXES: Final = (names.OWN_PREFIX, "TIMER_")
_STATUSES: Final = {
    ResponseCode.MESSAGE_ILLEGAL: 400,
    ResponseCode.NO_PERMISSION: 403,
    ResponseCode.SYSTEM_BUSY: 503,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: 404,
    ResponseCode.SERVICE_NOT_AVAILABLE: 503,
    ResponseCode.ILLEGAL_OPERATION: 409,
}
"""HTTP statuses of response codes with one meaning; the error's code is RocketMQ's name in lower case."""


class _Peer:
    """An HTTP client as a session of the broker.

    All HTTP clients have the same id. Together, they may create as many topics as one connection.
    """

    __slots__ = ("client_id", "id", "remote_address", "remote_host", "usage")

    certificate_name = ""

    def __init__(self, host: str, port: int) -> None:
        self.id = _SESSION_ID
        self.remote_host = pack_host(host, port)
        self.remote_address = host_and_port(host, port)
        self.client_id: str | None = None
        self.usage: AccountUsage | None = None

    @property
    def is_private(self) -> bool:
        """Whether the connection is protected from eavesdropping, which HTTP without TLS is not."""
        return False

    def signed_by(self, account: str) -> None:
        """Do nothing: HTTP requests are not signed."""

    def pause(self, seconds: float) -> float:
        """Return 0: a request beyond a quota is rejected instead of delayed."""
        return 0.0

    def shorten_pause(self, seconds: float) -> float | None:
        """Return None, as there are no pauses."""
        return None

    def end(self) -> None:
        """Do nothing, as for a pause."""

    def notify(self, command: Command) -> bool:
        """Return False: HTTP clients receive no requests."""
        return False


class SendQuery(Query):
    """Parameters of a send."""

    topic: Annotated[str, msgspec.Meta(max_length=names.MAX_TOPIC_LENGTH, pattern="^[%|a-zA-Z0-9_-]+$")]


class SendHttp:
    """Handler of sends."""

    def __init__(self, server: "BrokerServer") -> None:
        self._server = server
        self._ids = UniqueIds(unpack_host(server.broker.store_host)[0])
        self._bodies = LargeBodies()

    async def send(self, request: web.Request) -> Sent:
        """POST /api/v1/topics/TOPIC/messages: store a message, and return when it is as durable as other messages."""
        topic = request.match_info["topic"]
        problem = names.topic_problem(topic)
        if problem is not None:
            raise ApiError(400, "bad_request", problem)
        if request.query:
            raise ApiError(400, "bad_request", "a send has no parameters: describe the message in the JSON body")
        unique_id = self._ids.next()
        async with self._bodies.receive(request) as data:
            message = parse_message(data)
            header = SendMessageRequestHeader(
                producer_group=_PRODUCER_GROUP,
                topic=topic,
                default_topic=names.AUTO_CREATE_TOPIC,
                default_topic_queue_nums=_NEW_TOPIC_QUEUES,
                queue_id=-1 if message.queue_id is UNSET else message.queue_id,
                sys_flag=0,
                born_timestamp=self._server.broker.now_ms(),
                flag=0,
                properties=format_properties(properties_of(message, unique_id)),
            )
            response = await self._store(request, header, body_of(message))
        if response.code != ResponseCode.SUCCESS:
            raise ApiError(
                503,
                "not_flushed",
                f"the message {unique_id} is stored, but not yet flushed to disk or not yet replicated: check whether"
                " it still exists before you send it again",
            )
        return sent(unique_id, response)

    async def _store(self, request: web.Request, header: SendMessageRequestHeader, body: bytes) -> Response:
        """Store a message, and return the response, whose code states whether disk and replicas have it."""
        server = self._server
        broker = server.broker
        if broker.config.read_only:
            raise ApiError(409, "read_only", "the broker was started read-only (readOnly=true): send to another one")
        if request.transport is None:
            raise ConnectionResetError("the client disconnected before its message was stored")
        peer, caller = _Peer(*peer_of(request)), caller_of(request)
        if (remark := server.flow.refuse_send(peer.remote_address)) is not None:
            raise ApiError(503, "busy", remark)
        try:
            command = Command(RequestCode.SEND_MESSAGE_V2, language="HTTP", body=body)
            if caller.account is not None and broker.access is not None:
                command.fields = {ACCESS_KEY: caller.name}  # limits of the account apply
                usages = broker.access.usages
                usages.join(peer, caller.account, broker.access.rules.accounts).take(peer, command.code, len(body))
            result = send_one(broker, peer, command, header)
        except RequestError as error:
            refused = broker.stats.refused
            refused[error.code] = refused.get(error.code, 0) + 1
            raise self._refusal(error, header, len(body)) from error
        finally:
            if broker.access is not None:
                broker.access.usages.closed(peer)
            broker.announce_arrivals()
        return result if isinstance(result, Response) else await server.flushing.outcome(result)

    def _refusal(self, error: RequestError, header: SendMessageRequestHeader, body_bytes: int) -> ApiError:
        """Return the error response to a rejected send."""
        broker, cause = self._server.broker, error.__cause__
        if body_bytes > broker.max_message_size or isinstance(cause, RecordTooLargeError):
            return ApiError(413, "message_too_large", error.remark)
        if isinstance(cause, StoreError):
            return ApiError(503, "service_not_available", error.remark)
        code = ResponseCode(error.code)
        if code in _STATUSES:
            return ApiError(_STATUSES[code], code.name.lower(), error.remark)
        config = broker.topics.get(header.topic)
        if config is not None and header.queue_id >= max(config.write_queue_nums, config.read_queue_nums):
            return ApiError(404, "no_such_queue", error.remark)
        return ApiError(404, "no_such_topic", error.remark)


def parse_message(data: bytes) -> SendBody:
    """Parse the body of a request. Raises ApiError 400."""
    try:
        message = decode_json(data, SendBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, "bad_request", f"{error}: send an object such as {_EXAMPLE}") from None
    dues = message.delay_level, message.delay_ms, message.deliver_at, message.deliver_at_ms
    schedules = *dues, message.cron, message.every_ms
    if sum(schedule is not UNSET for schedule in schedules) > 1:
        raise ApiError(
            400,
            "bad_request",
            "a message has at most one due time: send only one of delayLevel, delayMs, deliverAt, deliverAtMs, cron,"
            " everyMs",
        )
    return message


def body_of(message: SendBody) -> bytes:
    """Return the body of a message. Raises ApiError 400 unless there is exactly one."""
    if message.body is not UNSET and message.body_base64 is UNSET:
        return message.body.encode()
    if message.body_base64 is not UNSET and message.body is UNSET:
        return message.body_base64
    raise ApiError(400, "bad_request", "a message has one body: send either body or bodyBase64")


def properties_of(message: SendBody, unique_id: str) -> dict[str, str]:
    """Return the properties of a message, with those that RocketMQ's clients set. Raises ApiError 400."""
    properties = {} if message.properties is UNSET else dict(message.properties)
    for name, value in properties.items():
        check_storable("the name of a property", name)
        check_storable(f"property {name[:_SHOWN_CHARACTERS]!r}", value)
        if name in _RESERVED or name.startswith(_RESERVED_PREFIXES):
            raise ApiError(
                400,
                "bad_request",
                f"property {name[:_SHOWN_CHARACTERS]!r} is reserved: use tags, keys, delayLevel, delayMs, deliverAt,"
                " deliverAtMs, delayKey, onSameKey, delayGroup, expireMs, cron, zone, everyMs, untilMs, runs or missed,"
                " or another name",
            )
    if message.tags is not UNSET:
        check_storable("tags", message.tags)
        properties[names.TAGS] = message.tags
    if message.keys is not UNSET and message.keys:
        for key in message.keys:
            check_storable("a key", key)
            if " " in key:
                raise ApiError(400, "bad_request", f"key {key[:_SHOWN_CHARACTERS]!r} contains a space: send two keys")
        properties[names.KEYS] = " ".join(message.keys)
    properties[names.UNIQUE_KEY] = unique_id
    if message.delay_level is not UNSET:
        properties[names.DELAY] = str(message.delay_level)
    elif message.delay_ms is not UNSET:
        properties[names.TIMER_DELAY_MS] = str(message.delay_ms)
    elif message.deliver_at_ms is not UNSET:
        properties[names.TIMER_DELIVER_MS] = str(message.deliver_at_ms)
    elif message.deliver_at is not UNSET:
        properties[names.TIMER_DELIVER_MS] = str(due_at_ms(message.deliver_at))
    _add_schedule(properties, message)
    _add_delay_properties(properties, message)
    return properties


def _add_schedule(properties: dict[str, str], message: SendBody) -> None:
    """Add the properties of a repeating message."""
    given = {
        names.DELAY_CRON: message.cron,
        names.DELAY_EVERY_MS: message.every_ms,
        names.DELAY_ZONE: message.zone,
        names.DELAY_UNTIL_MS: message.until_ms,
        names.DELAY_RUNS: message.runs,
        names.DELAY_MISSED: message.missed,
    }
    stated = {name: str(value) for name, value in given.items() if value is not UNSET}
    if stated and names.REPEATING.isdisjoint(stated):
        raise ApiError(
            400, "bad_request", "zone, untilMs, runs and missed need a repeating message: send cron or everyMs"
        )
    for name, value in stated.items():
        check_storable(name, value)
    properties.update(stated)


def _add_delay_properties(properties: dict[str, str], message: SendBody) -> None:
    """Add the properties of a delay in addition to its due time."""
    managed = message.delay_key, message.on_same_key, message.delay_group, message.expire_ms
    if all(each is UNSET for each in managed):
        return
    if not any(name in properties for name in (names.DELAY, *names.TIMER_PROPERTIES, *names.REPEATING)):
        raise ApiError(
            400,
            "bad_request",
            "delayKey, onSameKey, delayGroup and expireMs need a delay: send delayMs, deliverAt, deliverAtMs,"
            " delayLevel, cron or everyMs",
        )
    if message.on_same_key is not UNSET and message.delay_key is UNSET:
        raise ApiError(400, "bad_request", "onSameKey needs delayKey")
    if message.delay_key is not UNSET:
        check_storable("delayKey", message.delay_key)
        properties[names.DELAY_KEY] = message.delay_key
    if message.on_same_key is not UNSET:
        properties[names.DELAY_ON_SAME_KEY] = message.on_same_key
    if message.delay_group is not UNSET:
        check_storable("delayGroup", message.delay_group)
        properties[names.DELAY_GROUP] = message.delay_group
    if message.expire_ms is not UNSET:
        properties[names.DELAY_EXPIRE_MS] = str(message.expire_ms)


def due_at_ms(at: datetime) -> int:
    """Return a due time in ms since the epoch, rounded up: a message must not be delivered early.

    All times in the past are equivalent.
    """
    return max(-((_EPOCH - at) // timedelta(milliseconds=1)), 0)


def check_storable(what: str, text: str) -> None:
    """Raise ApiError 400 if properties cannot contain a text."""
    if not is_storable(text, text):
        raise ApiError(400, "bad_request", f"{what} must not be empty or contain the characters 0, 1 or 2")


def sent(unique_id: str, response: Response) -> Sent:
    """Return the description of a stored message."""
    fields = response.fields
    handle, is_kept = fields.get("recallHandle"), "delayKept" in fields
    return Sent(
        message_id=unique_id if not is_kept or handle is None else urlsafe_b64decode(handle).decode().split(" ")[-1],
        offset_message_id=fields["msgId"],
        queue_id=int(fields["queueId"]),
        queue_offset=int(fields["queueOffset"]),
        due_ms=None if handle is None else _due_ms(handle),
        recall_handle=handle,
        kept=is_kept,
    )


def _due_ms(handle: str) -> int:
    """Return the due time in a recall handle of this broker: `v1 TOPIC BROKERNAME DUE_MS UNIQ_KEY`."""
    return int(urlsafe_b64decode(handle).split(b" ")[-2])  # the broker's name may contain spaces
