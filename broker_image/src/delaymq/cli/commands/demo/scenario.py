"""Scenario of the demo: send, kill, restart, wait, count."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from delaymq.cli.commands.demo.broker_process import BrokerProcess
from delaymq.cli.commands.demo.report import ON_TIME_MS, Report, Sent
from delaymq.cli.commands.demo.screen import Screen
from delaymq.client import (
    Admin,
    Client,
    ConsumeFrom,
    Message,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
)
from delaymq.client.due_times import delay_in_ms
from delaymq.clock import now_ms

TOPIC = "Reminders"
GROUP = "demo"
QUEUES = 4
DELAYS = {"1s": 4, "5s": 4, "10s": 4}
KILL_AFTER_S = 2.5
"""By then the messages with a delay of 1 s have arrived; the others are pending on disk."""
MAX_WAIT_S = 20.0
LATE_COPIES_S = 1.0
"""Wait after the last arrival, in which a duplicate would arrive."""
POLL_S = 0.05


async def play(broker: BrokerProcess, screen: Screen) -> Report:
    """Run the demo and return its report; raise CommandError or ClientError if it cannot be run."""
    report = Report()
    began = time.monotonic()
    await broker.start()
    try:
        async with Client(broker.namesrv_address) as client:
            await broker.wait_until_ready(client)
            screen.line(f"a broker listens on {broker.broker_address}, started in {time.monotonic() - began:.2f} s")
            await Admin(client).create_topic(TOPIC, queues=QUEUES)
            consumer = _consumer(client, report, screen)
            async with consumer:
                await _until(lambda: sum(queue.topic == TOPIC for queue in consumer.assigned) == QUEUES, 10)
                await _send_all(client, report, screen)
                await asyncio.sleep(KILL_AFTER_S)
                await _kill_and_restart(broker, report, screen)
                await _until(lambda: not report.waiting, MAX_WAIT_S)
                await asyncio.sleep(LATE_COPIES_S)
        await broker.stop()
    finally:
        await broker.kill()
    return report


def _consumer(client: Client, report: Report, screen: Screen) -> PushConsumer:
    async def arrive(message: ReceivedMessage) -> None:
        sent = report.arrived(message, now_ms())
        text = message.body.decode()
        if sent is None:
            screen.line(f"unexpected message: {text}", "bold red")
        elif len(sent.arrivals_ms) > 1:
            screen.line(f"{text} arrived AGAIN", "bold red")
        else:
            late_ms = sent.lateness_ms or 0
            on_time = 0 <= late_ms <= ON_TIME_MS
            how = f"{late_ms} ms late" if late_ms >= 0 else f"{-late_ms} ms EARLY"
            screen.line(f"{text} arrived, {how}", "green" if on_time else "bold red")
            screen.count(sent.label, how)

    options = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, concurrency=1)
    consumer = PushConsumer(client, GROUP, arrive, options)
    consumer.subscribe(TOPIC)
    return consumer


async def _send_all(client: Client, report: Report, screen: Screen) -> None:
    # Without retries: a retry after an ambiguous failure could store a message twice.
    async with Producer(client, options=ProducerOptions(retries=0)) as producer:
        for delay, count in DELAYS.items():
            screen.expect(delay, count)
            for number in range(1, count + 1):
                sent_ms = now_ms()
                body = f"message {number} of {count}, delayed {delay}"
                result = await producer.send(Message(topic=TOPIC, body=body.encode()), delay=delay)
                report.sent[result.message_id] = Sent(delay, delay_in_ms(delay), sent_ms)
            screen.line(f"sent {count} messages with a delay of {delay}")


async def _kill_and_restart(broker: BrokerProcess, report: Report, screen: Screen) -> None:
    waiting = len(report.waiting)
    began = time.monotonic()
    pid = await broker.kill()
    screen.line(f"kill -9 {pid}: the broker is dead while {waiting} messages are pending", "bold yellow")
    await broker.start()
    async with Client(broker.namesrv_address) as fresh:
        await broker.wait_until_ready(fresh)
    screen.line(f"the broker has restarted on the same store after {time.monotonic() - began:.2f} s", "bold yellow")


async def _until(is_so: Callable[[], bool], timeout_s: float) -> None:
    """Wait until `is_so` returns true or `timeout_s` has passed; the report shows missing messages."""
    deadline = time.monotonic() + timeout_s
    while not is_so() and time.monotonic() < deadline:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(POLL_S)
