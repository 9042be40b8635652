"""Transactions against a scripted broker: half messages, checks, and closing."""

import asyncio

import pytest
from delaymq.client import (
    ClosedError,
    HalfMessage,
    LocalState,
    Message,
    ProducerOptions,
    ReceivedMessage,
    SendError,
    TransactionOptions,
    TransactionProducer,
)
from delaymq.client.sending import outgoing, requests
from delaymq.message.ids import offset_message_id, pack_host
from delaymq.message.properties import parse_properties
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq.protocol.headers import send_request_header
from delaymq_testing.client.fake_peer import FakeBroker, run, running, until

PAID = Message(topic="T", body=b"paid", tags="A", keys=("k",), properties={"p": "1"})
COMMIT, ROLLBACK, UNKNOWN = "8", "12", "0"


class Listener:
    """Says what `execution` and `answer` are; a check waits for `go_on`."""

    def __init__(self, execution: object = LocalState.COMMIT, answer: object = LocalState.COMMIT) -> None:
        self.execution = execution
        self.answer = answer
        self.executed: list[HalfMessage] = []
        self.checked: list[ReceivedMessage] = []
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def execute(self, message: HalfMessage, arg: object) -> LocalState:
        self.executed.append(message)
        return said(self.execution)

    async def check(self, message: ReceivedMessage) -> LocalState:
        self.checked.append(message)
        await self.go_on.wait()
        return said(self.answer)


def said(state: object) -> LocalState:
    if isinstance(state, Exception):
        raise state
    return state  # type: ignore[return-value]


class HalfBroker(FakeBroker):
    """Takes half messages, each at 1,000 bytes behind the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.halves: list[Command] = []
        self.status = ResponseCode.SUCCESS
        self.scripts[RequestCode.SEND_MESSAGE_V2] = self.half
        self.scripts[RequestCode.END_TRANSACTION] = lambda command: None

    def half(self, command: Command) -> Response:
        self.halves.append(command)
        number = len(self.halves)
        own_id = offset_message_id(pack_host("127.0.0.1", 1), 1_000 * number)
        return Response(self.status, fields={"msgId": own_id, "queueId": "0", "queueOffset": str(number)})

    @property
    def told(self) -> list[dict[str, str]]:
        """Ends of transactions that the broker received."""
        return [command.fields for command in self.asked(RequestCode.END_TRANSACTION)]

    def check(self, offset: int, *, group: str = "G", body: bytes | None = None) -> None:
        """Asks about the half message at an offset."""
        self.records.clear()
        self.add("T", b"paid", PGROUP=group, TRAN_MSG="true")
        fields = {"tranStateTableOffset": "7", "commitLogOffset": str(offset), "transactionId": "ID0", "bname": "b"}
        self.tell(RequestCode.CHECK_TRANSACTION_STATE, fields, self.records[0] if body is None else body)


def test_half_message_is_sent_and_its_outcome_reported() -> None:
    async def scenario() -> None:
        broker, listener = HalfBroker(), Listener()
        async with running(broker) as (client, _), TransactionProducer(client, "G", listener) as producer:
            result = await producer.send_in_transaction(PAID)
            header = send_request_header(RequestCode.SEND_MESSAGE_V2, broker.halves[0].fields)
            properties = parse_properties(header.properties or "")
            assert (properties["TRAN_MSG"], properties["PGROUP"], properties["p"]) == ("true", "G", "1")
            assert header.sys_flag & 0xC == 4
            [half] = listener.executed
            assert (half.body, half.tags, half.message_id) == (b"paid", "A", result.sent.message_id)
            await until(lambda: bool(broker.told))
            assert broker.told == [
                {
                    "producerGroup": "G", "tranStateTableOffset": "1", "commitLogOffset": "1000",
                    "commitOrRollback": COMMIT, "msgId": half.message_id, "fromTransactionCheck": "false",
                    "transactionId": half.message_id, "bname": "broker-a",
                }
            ]  # fmt: skip
            assert all(each.is_oneway for each in broker.asked(RequestCode.END_TRANSACTION))

    run(scenario)


def test_first_message_of_a_new_topic_is_settled_without_a_route() -> None:
    async def scenario() -> None:
        broker = HalfBroker()
        async with running(broker) as (client, _), TransactionProducer(client, "G", Listener()) as producer:
            result = await producer.send_in_transaction(Message(topic="New", body=b"paid"))
            assert result.sent.queue.topic == "New"
            await until(lambda: bool(broker.told))
            assert broker.told[0]["commitOrRollback"] == COMMIT

    run(scenario)


@pytest.mark.parametrize(
    ("execution", "told", "remark"),
    [
        (LocalState.ROLLBACK, ROLLBACK, None),
        (LocalState.UNKNOWN, UNKNOWN, None),
        (None, UNKNOWN, None),
        ("committed", UNKNOWN, None),
        (RuntimeError("no database"), UNKNOWN, "executeLocalTransactionBranch exception: RuntimeError: no database"),
    ],
)
def test_listeners_result_is_sent_to_the_broker(execution: object, told: str, remark: str | None) -> None:
    async def scenario() -> None:
        broker, listener = HalfBroker(), Listener(execution)
        async with running(broker) as (client, _), TransactionProducer(client, "G", listener) as producer:
            result = await producer.send_in_transaction(PAID)
            assert str(result.state.value) == told
            await until(lambda: bool(broker.told))
            [command] = broker.asked(RequestCode.END_TRANSACTION)
            assert (command.fields["commitOrRollback"], command.remark) == (told, remark)

    run(scenario)


def test_unflushed_half_message_is_rolled_back_without_execution() -> None:
    async def scenario() -> None:
        broker, listener = HalfBroker(), Listener()
        broker.status = ResponseCode.FLUSH_DISK_TIMEOUT
        async with running(broker) as (client, _), TransactionProducer(client, "G", listener) as producer:
            assert (await producer.send_in_transaction(PAID)).state is LocalState.ROLLBACK
            await until(lambda: bool(broker.told))
            assert broker.told[0]["commitOrRollback"] == ROLLBACK
            assert listener.executed == []

    run(scenario)


def test_possibly_stored_half_message_is_not_resent() -> None:
    async def scenario() -> None:
        broker, listener = HalfBroker(), Listener()

        def lose(command: Command) -> None:
            broker.halves.append(command)
            for connection in broker.connections:
                connection.abort()

        broker.scripts[RequestCode.SEND_MESSAGE_V2] = lose
        async with running(broker) as (client, _), TransactionProducer(client, "G", listener) as producer:
            with pytest.raises(SendError, match="after 1 attempt"):
                await producer.send_in_transaction(PAID)
            assert len(broker.halves) == 1
            assert listener.executed == []

    run(scenario)


@pytest.mark.parametrize(
    ("answer", "told", "remark"),
    [
        (LocalState.COMMIT, COMMIT, None),
        (LocalState.ROLLBACK, ROLLBACK, None),
        (None, UNKNOWN, None),
        (KeyError("row"), UNKNOWN, "checkLocalTransactionState Exception: KeyError: 'row'"),
    ],
)
def test_check_is_answered(answer: object, told: str, remark: str | None) -> None:
    async def scenario() -> None:
        broker, listener = HalfBroker(), Listener(LocalState.UNKNOWN, answer)
        async with running(broker) as (client, _), TransactionProducer(client, "G", listener) as producer:
            await producer.send_in_transaction(PAID)
            await until(lambda: bool(broker.told))
            broker.check(9_000)
            await until(lambda: len(broker.told) == 2)
            assert [each.body for each in listener.checked] == [b"paid"]
            command = broker.asked(RequestCode.END_TRANSACTION)[1]
            assert command.fields == {
                "producerGroup": "G", "tranStateTableOffset": "7", "commitLogOffset": "9000", "commitOrRollback": told,
                "msgId": "ID0", "fromTransactionCheck": "true", "transactionId": "ID0", "bname": "b",
            }  # fmt: skip
            assert command.remark == remark

    run(scenario)


def test_checks_are_limited_and_never_duplicated() -> None:
    async def scenario() -> None:
        broker, listener = HalfBroker(), Listener()
        listener.go_on.clear()
        options = TransactionOptions(max_open_checks=3, check_concurrency=2)
        async with running(broker) as (client, _), TransactionProducer(client, "G", listener, options) as producer:
            await producer.send_in_transaction(PAID)
            await until(lambda: len(broker.told) == 1)
            for offset in (1_000, 1_000, 2_000, 3_000, 4_000):
                broker.check(offset)
            broker.check(5_000, group="another")
            broker.check(6_000, body=b"no record")
            # A peer that responds to this has read everything before it.
            assert (
                await broker.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "x", "clientId": "y"})
            ).code
            await until(lambda: len(listener.checked) == 2)
            listener.go_on.set()
            await until(lambda: len(broker.told) == 4)
            assert {each["commitLogOffset"] for each in broker.told[1:]} == {"1000", "2000", "3000"}
            # There is capacity again, also for a transaction that was checked before.
            broker.check(1_000)
            await until(lambda: len(broker.told) == 5)

    run(scenario)


def test_close_waits_for_active_transactions_and_starts_none() -> None:
    async def scenario() -> None:
        broker, listener = HalfBroker(), Listener()
        listener.go_on.clear()
        async with running(broker) as (client, _):
            producer = TransactionProducer(client, "G", listener, TransactionOptions(close_timeout_ms=60_000))
            await producer.start()
            await producer.send_in_transaction(PAID)
            await until(lambda: len(broker.told) == 1)
            broker.check(2_000)
            await until(lambda: bool(listener.checked))
            closing = asyncio.ensure_future(producer.close())
            await asyncio.sleep(0)
            with pytest.raises(ClosedError, match="being closed"):
                await producer.send_in_transaction(PAID)
            broker.check(3_000)
            await broker.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "x", "clientId": "y"})
            assert not closing.done()
            listener.go_on.set()
            await closing
            await until(lambda: len(broker.told) == 2)
            assert len(listener.checked) == 1

    run(scenario)


def test_close_waits_for_a_transaction_during_compression(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        broker, begun, go_on = HalfBroker(), asyncio.Event(), asyncio.Event()
        compress = requests.compressed_in_thread

        async def held(body: bytes, options: ProducerOptions) -> tuple[bytes, int]:
            begun.set()
            await go_on.wait()
            return await compress(body, options)

        monkeypatch.setattr(outgoing, "compressed_in_thread", held)
        async with running(broker) as (client, _):
            producer = TransactionProducer(client, "G", Listener(), TransactionOptions(close_timeout_ms=60_000))
            await producer.start()
            sending = asyncio.ensure_future(producer.send_in_transaction(Message(topic="T", body=b"x" * 100_000)))
            await begun.wait()
            closing = asyncio.ensure_future(producer.close())
            for _ in range(20):  # turns of the loop, in which it would end
                await asyncio.sleep(0)
            assert client.members == [producer]
            go_on.set()
            await closing
            assert (await sending).state is LocalState.COMMIT

    run(scenario)


def test_close_abandons_a_hanging_check(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        broker, listener = HalfBroker(), Listener()
        listener.go_on.clear()
        async with running(broker) as (client, _):
            options = TransactionOptions(close_timeout_ms=50)
            async with TransactionProducer(client, "G", listener, options) as producer:
                await producer.send_in_transaction(PAID)
                await until(lambda: len(broker.told) == 1)
                broker.check(2_000)
                await until(lambda: bool(listener.checked))
            assert len(broker.told) == 1

    run(scenario)
    assert "0 local transactions and 1 checks of G were open when the producer was closed" in caplog.text


def test_unavailable_broker_at_the_end_does_not_fail_the_caller() -> None:
    async def scenario() -> None:
        broker = HalfBroker()

        class Killer(Listener):
            async def execute(self, message: HalfMessage, arg: object) -> LocalState:
                await broker.stop()
                return LocalState.COMMIT

        async with running(broker) as (client, _), TransactionProducer(client, "G", Killer()) as producer:
            assert (await producer.send_in_transaction(PAID)).state is LocalState.COMMIT

    run(scenario)
