"""Changes by the client at several brokers: which one decides."""

from __future__ import annotations

import pytest
from delaymq.client import NotPendingError, Producer, RefusedError, SendError
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Response
from delaymq_testing.client.fake_peer import FakeBroker, run, running

DELIVERED = Response(
    ResponseCode.ILLEGAL_OPERATION, "the message was delivered", {"delayFate": "delivered", "delayAtMs": "7"}
)
UNKNOWN = Response(ResponseCode.ILLEGAL_OPERATION, "no pending message", {"delayFate": "unknown"})
CANCELLED = Response(fields={"delayChanged": "1"})
CANCELLED_BEFORE = Response(fields={"delayChanged": "0"})


def broker(name: str, answer: Response) -> FakeBroker:
    made = FakeBroker(name)
    made.settings = "httpPort=8080\nmessageDelayLevel=1s 5s\nrecallMessageEnable=true\n"
    made.scripts[RequestCode.SEND_MESSAGE_V2] = lambda _: answer
    return made


@pytest.mark.parametrize("earlier", [DELIVERED, UNKNOWN, CANCELLED_BEFORE], ids=["delivered", "unknown", "cancelled"])
@pytest.mark.parametrize("names", ["ab", "ba"])
def test_key_that_one_broker_knows_as_ended_is_searched_for_at_the_others(earlier: Response, names: str) -> None:
    async def scenario() -> None:
        brokers = broker(names[0], earlier), broker(names[1], CANCELLED)
        async with running(*brokers) as (client, _), Producer(client, "p") as producer:
            changed = await producer.cancel("T", key="k")
            assert (changed.broker_name, changed.messages) == (names[1], 1)

    run(scenario)


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_end_that_one_broker_knows_is_reported_if_no_other_has_the_message(names: str) -> None:
    async def scenario() -> None:
        async with (
            running(broker(names[0], DELIVERED), broker(names[1], UNKNOWN)) as (client, _),
            Producer(client, "p") as producer,
        ):
            with pytest.raises(NotPendingError) as ended:
                await producer.cancel("T", key="k")
            assert (ended.value.fate, ended.value.at_ms) == ("delivered", 7)

    run(scenario)


def test_broker_that_does_not_answer_may_have_the_message() -> None:
    async def scenario() -> None:
        brokers = broker("a", UNKNOWN), broker("b", CANCELLED)
        async with running(*brokers) as (client, _), Producer(client, "p") as producer:
            await producer.cancel("T", key="k")  # now the client knows the settings of both
            await brokers[1].stop()
            with pytest.raises(SendError):
                await producer.cancel("T", key="k")

    run(scenario)


def test_group_is_changed_at_all_brokers_and_those_that_do_not_answer_are_named() -> None:
    async def scenario() -> None:
        answers = Response(fields={"delayChanged": "2", "delayDueMs": "9"}), CANCELLED, UNKNOWN
        brokers = [broker(name, answer) for name, answer in zip("abc", answers, strict=True)]
        async with running(*brokers) as (client, _), Producer(client, "p") as producer:
            changed = await producer.fire("T", group="g")
            assert (changed.broker_name, changed.messages, changed.due_ms, changed.missing) == ("", 3, 9, ())
            await brokers[1].stop()
            paused = await producer.pause("T", "g")
            assert (paused.messages, paused.missing) == (2, ("b",))
            await brokers[0].stop()
            await brokers[2].stop()
            with pytest.raises(SendError):
                await producer.resume("T")

    run(scenario)


def test_rejected_change_of_a_group_is_an_error_even_if_another_broker_accepts_it() -> None:
    async def scenario() -> None:
        refused = Response(ResponseCode.NO_PERMISSION, "recallMessageEnable=false")
        async with (
            running(broker("a", CANCELLED), broker("b", refused)) as (client, _),
            Producer(client, "p") as producer,
        ):
            with pytest.raises(RefusedError, match="recallMessageEnable"):
                await producer.cancel("T", group="g")

    run(scenario)
