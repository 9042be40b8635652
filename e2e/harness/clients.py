"""RocketMQ's clients as objects, whose methods are commands to the driver."""

import base64
import contextlib
import itertools
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from harness.driver import ClientError, Driver, Received
from harness.errors import HarnessError

SendMode = Literal["sync", "async", "oneway"]
READ_WRITE = 6
ROUTE_TIMEOUT_S = 60.0
"""A broker whose registration failed on a busy machine repeats it only after its period, at least 10 s."""

_names = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Sent:
    """Result of a send, as returned to the producer."""

    status: str
    message_id: str
    offset_message_id: str
    topic: str
    queue_id: int
    queue_offset: int
    broker_name: str
    region_id: str
    recall_handle: str | None
    """Only with the client of 5.3, for a timed message."""

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Sent":
        return cls(
            status=fields["status"],
            message_id=fields["msgId"],
            offset_message_id=fields["offsetMsgId"],
            topic=fields["topic"],
            queue_id=fields["queueId"],
            queue_offset=fields["queueOffset"],
            broker_name=fields["brokerName"],
            region_id=fields["regionId"],
            recall_handle=fields.get("recallHandle"),
        )


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """Result of one pull."""

    status: str
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: list[Received]
    arrival_timestamp_ms: int

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Pulled":
        return cls(
            status=fields["status"],
            next_begin_offset=fields["nextBeginOffset"],
            min_offset=fields["minOffset"],
            max_offset=fields["maxOffset"],
            messages=[Received.from_json(message) for message in fields["messages"]],
            arrival_timestamp_ms=fields["arrivalTimestamp"],
        )


def message(topic: str, body: str | bytes | int, **fields: Any) -> dict[str, Any]:
    """Return a message to send; an int body is a length in bytes. Fields: tags, keys, flag, delayLevel,
    deliverTimeMs, delayTimeMs, delayTimeSec, properties, and reservedProperties, which the client would not permit.
    """
    if isinstance(body, int):
        return {"topic": topic, "bodySize": body, **fields}
    raw = body.encode() if isinstance(body, str) else body
    return {"topic": topic, "body": base64.b64encode(raw).decode(), **fields}


class Client:
    """A started client; the driver identifies it by its name."""

    def __init__(self, driver: Driver, kind: str, name: str, **fields: Any) -> None:
        self.driver = driver
        self.name = name
        self.client_id: str = driver.call(f"{kind}.start", client=name, **fields)["clientId"]

    def call(self, operation: str, **fields: Any) -> Any:
        return self.driver.call(operation, client=self.name, **fields)

    def stop(self) -> None:
        self.call("stop")


ClientT = TypeVar("ClientT", bound=Client)


class Producer(Client):
    def send(self, topic: str, body: str | bytes | int, *, queue_id: int | None = None, **fields: Any) -> Sent:
        """Send and wait for the broker's response."""
        return Sent.from_json(self.driver.result(self.submit(topic, body, queue_id=queue_id, **fields), "a send"))

    def submit(
        self,
        topic: str,
        body: str | bytes | int,
        *,
        mode: SendMode = "sync",
        queue_id: int | None = None,
        order_key: str | None = None,
        **fields: Any,
    ) -> "Future[Any]":
        """Send without waiting, with any of the producer's methods."""
        request: dict[str, Any] = {"mode": mode, "message": message(topic, body, **fields)}
        if queue_id is not None:
            request["queueId"] = queue_id
        if order_key is not None:
            request["orderKey"] = order_key
        return self.driver.submit("producer.send", client=self.name, **request)

    def send_oneway(self, topic: str, body: str | bytes | int, **fields: Any) -> None:
        self.driver.result(self.submit(topic, body, mode="oneway", **fields), "a one-way send")

    def send_async(self, topic: str, body: str | bytes | int, **fields: Any) -> Sent:
        return Sent.from_json(self.driver.result(self.submit(topic, body, mode="async", **fields), "an async send"))

    def send_batch(self, messages: Sequence[dict[str, Any]]) -> Sent:
        return Sent.from_json(self.call("producer.sendBatch", messages=list(messages)))

    def recall(self, topic: str, handle: str) -> str:
        """Cancel a pending message with a client of 5.3; return its unique id."""
        return str(self.call("producer.recall", topic=topic, handle=handle))

    def queue_ids(self, topic: str) -> list[int]:
        return sorted(queue["queueId"] for queue in self.call("producer.queues", topic=topic))

    def request(self, topic: str, body: str | bytes | int, *, timeout_ms: int, **fields: Any) -> Received:
        """Send a request and wait for the reply; `callback=True` uses the client's callback method."""
        callback = fields.pop("callback", False)
        request = {"message": message(topic, body, **fields), "timeoutMs": timeout_ms, "callback": callback}
        return Received.from_json(self.call("request.request", **request))


class Replier(Client):
    """A consumer that replies to each request with a prefix and the request's body."""

    def __init__(self, driver: Driver, name: str, **fields: Any) -> None:
        self.inbox = driver.inbox(name)
        super().__init__(driver, "replier", name, **fields)

    def outcomes(self) -> list[dict[str, Any]]:
        """Return the outcome of each reply so far: `status` and ids, or `error`."""
        return list(self.call("replier.outcomes"))


class TransactionProducer(Client):
    """A producer with a scripted listener (see Transactions.java); `inbox` contains the checks that it received."""

    def __init__(self, driver: Driver, name: str, **fields: Any) -> None:
        self.inbox = driver.inbox(name)
        self.group = str(fields["group"])
        super().__init__(driver, "transactions", name, **fields)

    def send(self, topic: str, body: str, script: str, **fields: Any) -> Sent:
        """Send a message whose local transaction and checks return the results in `script`: C, R, U or X each."""
        return Sent.from_json(self.call("transactions.send", message=message(topic, body, **fields), script=script))

    def prepare(self, topic: str, body: str, script: str = "U", **fields: Any) -> Sent:
        """Send a half message that nobody ends; a delay level is kept."""
        return Sent.from_json(self.call("transactions.prepare", message=message(topic, body, **fields), script=script))

    def end(self, half: Sent, state: int, *, broker: str, **changes: Any) -> tuple[int, str | None]:
        """End a transaction; return code and remark of the response."""
        request = {
            "group": self.group,
            "queueOffset": half.queue_offset,
            "commitLogOffset": int(half.offset_message_id[-16:], 16),
            "msgId": half.message_id,
            "state": state,
            "broker": broker,
        }
        answer = self.call("transactions.end", **{**request, **changes})
        return answer["code"], answer.get("remark")


class PushConsumer(Client):
    def __init__(self, driver: Driver, name: str, **fields: Any) -> None:
        self.inbox = driver.inbox(name)
        super().__init__(driver, "push", name, **fields)

    def pulls(self, topic: str) -> list[tuple[str, int]]:
        """Return address and offset of each pull so far, for a consumer started with `recordPulls=True`."""
        return [(pull["address"], pull["offset"]) for pull in self.call("push.pulls") if pull["topic"] == topic]


class PullConsumer(Client):
    def submit(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        wait: bool = False,
        expression: str = "*",
        sql: bool = False,
        max_count: int = 32,
    ) -> "Future[Any]":
        """Start a pull (``wait``: a long poll); `Pulled.from_json` converts its result."""
        fields = {"topic": topic, "queueId": queue_id, "offset": offset, "maxCount": max_count, "sql": sql}
        return self.driver.submit("pull.pull", client=self.name, wait=wait, expression=expression, **fields)

    def pull(self, topic: str, queue_id: int, offset: int, **options: Any) -> Pulled:
        return Pulled.from_json(self.driver.result(self.submit(topic, queue_id, offset, **options), "a pull"))

    def next_broker_id(self, topic: str, queue_id: int) -> int:
        """Return the broker id that the last response suggested for the next pull of a queue."""
        return int(self.call("pull.next", topic=topic, queueId=queue_id))

    def committed(self, topic: str, queue_id: int) -> int:
        return int(self.call("pull.offset", topic=topic, queueId=queue_id))

    def commit(self, topic: str, queue_id: int, offset: int) -> None:
        self.call("pull.updateOffset", topic=topic, queueId=queue_id, offset=offset)

    def send_back(self, topic: str, queue_id: int, offset: int, *, delay_level: int) -> None:
        """Pull one message and return it to the broker as failed."""
        self.call("pull.sendBack", topic=topic, queueId=queue_id, offset=offset, delayLevel=delay_level)


class LitePullConsumer(Client):
    def poll_until(self, count: int, *, timeout_s: float = 60.0) -> list[Received]:
        """Poll until ``count`` messages have arrived; AssertionError after the timeout."""
        deadline = time.monotonic() + timeout_s
        got: list[Received] = []
        while len(got) < count:
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.name} polled only {len(got)} of {count} messages in {timeout_s:g} s")
            got += [Received.from_json(fields) for fields in self.call("litePull.poll", timeoutMs=500)]
        return got

    def seek(self, topic: str, queue_id: int, offset: int) -> None:
        self.call("litePull.seek", topic=topic, queueId=queue_id, offset=offset)

    def commit(self) -> None:
        self.call("litePull.commit")

    def committed(self, topic: str, queue_id: int) -> int:
        return int(self.call("litePull.committed", topic=topic, queueId=queue_id))


class AdminClient(Client):
    def view(self, message_id: str, *, topic: str | None = None) -> Received:
        """Return a message by offset message id, or by unique id if the topic is given."""
        fields = {"messageId": message_id} if topic is None else {"messageId": message_id, "topic": topic}
        return Received.from_json(self.call("admin.viewMessage", **fields))

    def query(self, topic: str, key: str, *, max_count: int = 32) -> list[Received]:
        """Return messages by key over all time; ClientError if there are none."""
        now_ms = int(time.time() * 1000)
        fields = {"maxCount": max_count, "beginMs": 0, "endMs": now_ms + 60_000}
        answer = self.call("admin.queryMessage", topic=topic, key=key, **fields)
        return [Received.from_json(found) for found in answer["messages"]]

    def offsets(self, topic: str, queue_id: int) -> dict[str, int]:
        """Return ``min``, ``max`` and ``earliestStoreTimestamp`` of a queue."""
        answer: dict[str, int] = self.call("admin.offsets", topic=topic, queueId=queue_id)
        return answer

    def search_offset(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        return int(self.call("admin.searchOffset", topic=topic, queueId=queue_id, timestamp=timestamp_ms))

    def update_topic(self, topic: str, *, broker: str, queues: int = 4, permission: int = READ_WRITE) -> None:
        self.call("admin.updateTopic", topic=topic, broker=broker, queues=queues, permission=permission)

    def create_topic(self, topic: str, *, key: str, queues: int) -> None:
        self.call("admin.createTopic", topic=topic, key=key, queues=queues)

    def ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Return the result of any method of DefaultMQAdminExt (see AdminCalls.java); ``api``: of the API below it."""
        return self.call("admin.call", method=method, arguments=list(arguments), **options)

    def route(self, topic: str) -> dict[str, Any]:
        """Return a topic's route; ClientError 17 if there is none."""
        return dict(self.ask("examineTopicRouteInfo", topic))

    def consumers(self, group: str) -> list[str]:
        """Return the client ids of a group's members."""
        return sorted(self.call("admin.consumers", group=group))

    def member_offsets(self, topic: str, group: str, **member: str) -> list[tuple[str, int, int]]:
        """Return offsets reported by members: (client id, queue id, offset); `member` selects one by its client id."""
        lines = self.call("members.offsets", topic=topic, group=group, **member)
        return sorted((line["clientId"], line["queueId"], line["offset"]) for line in lines)

    def consumed(self, group: str) -> dict[tuple[str, int], tuple[int, int]]:
        """Return (topic, queue id) → (consumer's offset, broker's offset)."""
        return {
            (queue["topic"], queue["queueId"]): (queue["consumerOffset"], queue["brokerOffset"])
            for queue in self.call("admin.consumeStats", group=group)
        }


class Workbench:
    """The clients, topics and groups of one test; names are unique, and clients stop with it."""

    def __init__(
        self,
        driver: Driver,
        *,
        namesrv_address: str,
        broker_address: str,
        credentials: dict[str, str] | None = None,
    ) -> None:
        """`credentials` (accessKey, secretKey) sign the requests of all clients without credentials of their own."""
        self.driver = driver
        self.credentials = credentials
        self.namesrv_address = namesrv_address
        self.broker_address = broker_address
        self._clients: list[Client] = []
        self._admin: AdminClient | None = None
        self._producer: Producer | None = None

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = self._kept(AdminClient(self.driver, "admin", self.name("admin"), **self._address()))
        return self._admin

    @property
    def producer(self) -> Producer:
        """Producer with the client's default options."""
        if self._producer is None:
            self._producer = self.new_producer()
        return self._producer

    def new_producer(self, **options: Any) -> Producer:
        fields = {"group": self.name("producers"), **self._address(), **options}
        return self._kept(Producer(self.driver, "producer", self.name("producer"), **fields))

    def transactions(self, *, group: str | None = None, **options: Any) -> TransactionProducer:
        fields = {"group": group or self.name("payers"), **self._address(), **options}
        return self._kept(TransactionProducer(self.driver, self.name("transactions"), **fields))

    def push(self, topic: str, *, group: str, expression: str = "*", **options: Any) -> PushConsumer:
        fields = {"persistOffsetMs": 500, **self._address(), **options}
        subscriptions = {topic: expression}
        name = self.name("push")
        return self._kept(PushConsumer(self.driver, name, group=group, subscriptions=subscriptions, **fields))

    def traces(self, body: bytes) -> list[dict[str, Any]]:
        """Decode a message of the trace topic with RocketMQ's client."""
        return list(self.driver.call("traces.decode", body=base64.b64encode(body).decode()))

    def replier(self, topic: str, *, group: str, prefix: str = "re: ", **options: Any) -> Replier:
        fields = {"group": group, "topic": topic, "prefix": prefix, **self._address(), **options}
        return self._kept(Replier(self.driver, self.name("replier"), **fields))

    def pull(self, *, group: str, **options: Any) -> PullConsumer:
        fields = {**self._address(), **options}
        return self._kept(PullConsumer(self.driver, "pull", self.name("pull"), group=group, **fields))

    def lite_pull(self, topic: str, *, group: str, expression: str = "*", **options: Any) -> LitePullConsumer:
        fields = {"topic": topic, "expression": expression, "autoCommit": False, **self._address(), **options}
        return self._kept(LitePullConsumer(self.driver, "litePull", self.name("lite-pull"), group=group, **fields))

    def topic(self, *, queues: int = 4, permission: int = READ_WRITE) -> str:
        """Create a topic and wait until the NameServer has its route."""
        topic = self.name("Topic")
        self.admin.update_topic(topic, broker=self.broker_address, queues=queues, permission=permission)
        if permission == READ_WRITE:
            self.wait_for_route(topic, queues=queues)
        return topic

    def wait_for_route(self, topic: str, *, queues: int | None = None) -> None:
        """Wait until the NameServer has a topic's route: brokers register new topics asynchronously."""
        deadline = time.monotonic() + ROUTE_TIMEOUT_S
        while True:
            with contextlib.suppress(ClientError):
                found = len(self.producer.queue_ids(topic))
                if found and queues in (None, found):
                    return
            if time.monotonic() > deadline:
                raise HarnessError(f"no route to topic {topic} within {ROUTE_TIMEOUT_S:g} s")
            time.sleep(0.05)

    def group(self, *, retry_topic: bool = False) -> str:
        """Create a group. Its retry topic is created by its first member's heartbeat, too late for that member's first
        route lookup (the next one follows after up to 30 s); ``retry_topic`` creates it beforehand."""
        group = self.name("group")
        if retry_topic:
            self.admin.update_topic(f"%RETRY%{group}", broker=self.broker_address, queues=1)
            self.wait_for_route(f"%RETRY%{group}", queues=1)
        return group

    def name(self, prefix: str) -> str:
        """Return a name that is unique in this session."""
        return f"{prefix}-{next(_names)}"

    def mqadmin(self, *arguments: str) -> str:
        return self.driver.mqadmin(*arguments, "-n", self.namesrv_address)

    def stop(self, client: Client) -> None:
        """Stop one client before the end of the test."""
        self._clients.remove(client)
        client.stop()

    def close(self) -> None:
        """Stop all clients concurrently, since each takes some time to shut down."""
        stopping = [client.driver.submit("stop", client=client.name) for client in self._clients]
        self._clients.clear()
        for future in stopping:
            self.driver.result(future, "stop")

    def _address(self) -> dict[str, Any]:
        account = {} if self.credentials is None else {"credentials": self.credentials}
        return {"namesrv": self.namesrv_address, **account}

    def _kept(self, client: ClientT) -> ClientT:
        self._clients.append(client)
        return client
