"""Lookup of messages at brokers, including pending delayed messages."""

from __future__ import annotations

from delaymq.cli.errors import EXIT_NOT_DONE, EXIT_UNREACHABLE, CommandError
from delaymq.cli.terminal.times import format_time
from delaymq.cli.views.message_ids import parse_message_id
from delaymq.cli.views.message_text import PENDING_TOPICS, body_text, state
from delaymq.client import Admin, Client, ClientError, NoRouteError, ReceivedMessage, RefusedError
from delaymq.message import names
from delaymq.message.errors import NewerFormError
from delaymq.message.timed_marks import parse_own_due
from delaymq.transport.addresses import host_and_port

MAX_KEYED = 64
"""Maximum number of messages that a broker returns for a query by key."""


class Unreachable:
    """Collects the brokers that a search could not reach; pass it as `on_unreachable`."""

    def __init__(self) -> None:
        self._errors: dict[str, ClientError] = {}

    def __call__(self, broker_name: str, error: ClientError) -> None:
        self._errors[broker_name] = error

    def __bool__(self) -> bool:
        return bool(self._errors)

    @property
    def exit_code(self) -> int:
        """Exit code of a search without results."""
        return EXIT_UNREACHABLE if self._errors else EXIT_NOT_DONE

    def __str__(self) -> str:
        listed = "; ".join(f"{name} ({error})" for name, error in sorted(self._errors.items()))
        return f"not searched because unreachable: {listed}" if listed else ""


async def find_by_offset_id(client: Client, message_id: str) -> ReceivedMessage:
    """Return the message with an offset message id, if the id names a registered broker."""
    host, port, _ = parse_message_id(message_id)
    address = host_and_port(host, port)
    info = await Admin(client).cluster_info()
    known = {each for broker in info.broker_addr_table.values() for each in broker.broker_addrs.values()}
    # A unique id has the same form but contains an arbitrary address.
    if address not in known:
        raise CommandError(
            f"{message_id} contains the address {address}, but no registered broker has that address (registered:"
            f" {', '.join(sorted(known)) or 'none'}): if it is a unique id, specify its topic with --topic"
        )
    try:
        return await Admin(client).view_message(message_id)
    except RefusedError as error:
        raise CommandError(f"{address} has no message {message_id}: it was deleted, or the id is wrong") from error


async def find_by_unique_id(
    client: Client, topic: str, unique_id: str, unreachable: Unreachable
) -> list[ReceivedMessage]:
    """Return the messages with a unique id; several if it was retried or stored twice."""
    everything = await find_by_key(client, topic, unique_id, 0, None, unreachable)
    found = [each for each in everything if each.message_id == unique_id]
    if not found:
        what = f"topic {topic} has no message with unique id {unique_id}"
        raise CommandError(f"{what}; {unreachable}" if unreachable else what, unreachable.exit_code)
    return found


async def find_by_key(
    client: Client,
    topic: str,
    key: str,
    begin_ms: int,
    end_ms: int | None,
    unreachable: Unreachable,
    limit: int = MAX_KEYED,
) -> list[ReceivedMessage]:
    """Return the messages of `topic` with a key or unique id, oldest first, including pending ones.

    Queries all brokers of the topic; adds unreachable ones to `unreachable`.
    """
    admin = Admin(client)
    most = min(limit, MAX_KEYED)
    found = await admin.query_by_key(
        topic, key, max_messages=most, begin_ms=begin_ms, end_ms=end_ms, on_unreachable=unreachable
    )
    delivered = {message.message_id for message in found}
    for pending_topic in PENDING_TOPICS:
        try:
            waiting = await admin.query_by_key(
                *(pending_topic, key),
                max_messages=MAX_KEYED,
                begin_ms=begin_ms,
                end_ms=end_ms,
                on_unreachable=unreachable,
            )
        except NoRouteError:
            continue  # a broker that does not register the topic, or has no delayed messages yet
        for message in _newest_records(waiting):
            if message.properties.get(names.REAL_TOPIC) == topic and message.message_id not in delivered:
                found.append(message)
    return sorted(found, key=lambda message: message.store_timestamp_ms)[:most]


def _newest_records(messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
    """Return the newest record of each message: a broker stores a timed message again before it deletes its segment."""
    newest: dict[tuple[str, int], ReceivedMessage] = {}
    for message in sorted(messages, key=lambda message: message.physical_offset):
        try:
            due = parse_own_due(message.properties.get(names.DUE, ""), message.physical_offset)
        except NewerFormError:
            due = None
        newest[message.queue.broker_name, message.physical_offset if due is None else due.identity] = message
    return [*newest.values()]


def found_rows(messages: list[ReceivedMessage], body_characters: int) -> list[tuple[str, ...]]:
    """Return the table cells of a list of messages."""
    return [
        (
            format_time(each.store_timestamp_ms),
            each.message_id,
            f"{each.queue.broker_name} {each.queue.queue_id}".strip(),
            str(each.queue_offset),
            each.tags,
            " ".join(each.keys),
            f"pending until {format_time(each.due_ms)}" if state(each) == "waiting" and each.due_ms else state(each),
            " ".join(body_text(each, body_characters).split()),
        )
        for each in messages
    ]
