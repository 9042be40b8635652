"""Looking messages up at brokers, delayed ones too while they wait in another topic."""

from __future__ import annotations

from delaymq.cli.errors import EXIT_NOT_DONE, EXIT_UNREACHABLE, CommandError
from delaymq.cli.terminal.times import shown_time
from delaymq.cli.views.message_ids import place_of
from delaymq.cli.views.message_text import body_text, state
from delaymq.client import Admin, Client, ClientError, NoRouteError, ReceivedMessage, RefusedError
from delaymq.message import names
from delaymq.transport.addresses import host_and_port

MAX_KEYED = 64
"""What a broker answers at most to a query by key."""


class Unreachable:
    """The brokers that a search could not ask; pass it as `on_unreachable`."""

    def __init__(self) -> None:
        self._errors: dict[str, ClientError] = {}

    def __call__(self, broker_name: str, error: ClientError) -> None:
        self._errors[broker_name] = error

    def __bool__(self) -> bool:
        return bool(self._errors)

    @property
    def exit_code(self) -> int:
        """Of a search that found nothing."""
        return EXIT_UNREACHABLE if self._errors else EXIT_NOT_DONE

    def __str__(self) -> str:
        listed = "; ".join(f"{name} ({error})" for name, error in sorted(self._errors.items()))
        return f"not searched, since it could not be reached: {listed}" if listed else ""


async def by_offset_id(client: Client, message_id: str) -> ReceivedMessage:
    """The message at the place that an id names, if that is a place at a broker that is registered."""
    host, port, _ = place_of(message_id)
    address = host_and_port(host, port)
    info = await Admin(client).cluster_info()
    known = {each for broker in info.broker_addr_table.values() for each in broker.broker_addrs.values()}
    # A unique id has the same form and would lead anywhere.
    if address not in known:
        raise CommandError(
            f"{message_id} would be at {address}, where no broker is registered ({', '.join(sorted(known)) or 'none'}"
            " is): if it is a unique id, name its topic with --topic"
        )
    try:
        return await Admin(client).view_message(message_id)
    except RefusedError as error:
        raise CommandError(f"{address} has no message {message_id}: it was deleted, or the id is wrong") from error


async def by_unique_id(client: Client, topic: str, unique_id: str, unreachable: Unreachable) -> list[ReceivedMessage]:
    """The message with a unique id; several where it was sent again or stored twice."""
    everything = await by_key(client, topic, unique_id, 0, None, unreachable)
    found = [each for each in everything if each.message_id == unique_id]
    if not found:
        what = f"topic {topic} has no message with the unique id {unique_id}"
        raise CommandError(f"{what}; {unreachable}" if unreachable else what, unreachable.exit_code)
    return found


async def by_key(
    client: Client,
    topic: str,
    key: str,
    begin_ms: int,
    end_ms: int | None,
    unreachable: Unreachable,
    limit: int = MAX_KEYED,
) -> list[ReceivedMessage]:
    """Messages of `topic` with a key or unique id, oldest first, with those that wait to be delivered.

    All brokers of the topic are asked; those that could not be reached are in `unreachable` afterwards.
    """
    admin = Admin(client)
    most = min(limit, MAX_KEYED)
    found = await admin.query_by_key(
        topic, key, max_messages=most, begin_ms=begin_ms, end_ms=end_ms, on_unreachable=unreachable
    )
    delivered = {message.message_id for message in found}
    try:
        waiting = await admin.query_by_key(
            *(names.SCHEDULE_TOPIC, key),
            max_messages=MAX_KEYED,
            begin_ms=begin_ms,
            end_ms=end_ms,
            on_unreachable=unreachable,
        )
    except NoRouteError:
        waiting = []  # a broker that registers it not, or one without a delayed message yet
    for message in waiting:
        if message.properties.get(names.REAL_TOPIC) == topic and message.message_id not in delivered:
            found.append(message)
    return sorted(found, key=lambda message: message.store_timestamp_ms)[:most]


def found_rows(messages: list[ReceivedMessage], body_characters: int) -> list[tuple[str, ...]]:
    """Cells of a list of messages."""
    return [
        (
            shown_time(each.store_timestamp_ms),
            each.message_id,
            f"{each.queue.broker_name} {each.queue.queue_id}".strip(),
            str(each.queue_offset),
            each.tags,
            " ".join(each.keys),
            f"waits until {shown_time(each.due_ms)}" if state(each) == "waiting" and each.due_ms else state(each),
            " ".join(body_text(each, body_characters).split()),
        )
        for each in messages
    ]
