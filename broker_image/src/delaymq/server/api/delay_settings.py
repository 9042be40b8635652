"""/api/v1/delay/settings: limits, promises and other settings of delayed messages by topic and account."""

import logging
from collections.abc import Callable
from heapq import nsmallest
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from delaymq.api_types.delay_settings import (
    AccountDelays,
    AccountDelaySettings,
    DelaySettings,
    TopicDelays,
    TopicDelaySettings,
)
from delaymq.broker.delivery.level_entries import UNKNOWN_TOPIC
from delaymq.message import names
from delaymq.protocol.errors import RequestError
from delaymq.schedule.timeline.inspection import find_next_due_times, latest_due_times
from delaymq.server.api.delay_changes import wait_for_tables
from delaymq.server.api.messages.timed import reading_index
from delaymq.server.api.routing import Api, ApiError, Limit, Name, Query
from delaymq.server.api.topics import no_topic
from delaymq.server.log_reader import clean_text
from delaymq.server.time_slices import TimeSlices

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker

_logger = logging.getLogger(__name__)
_MAX_ACCOUNT_CHARACTERS: Final = 255


class DelaySettingsQuery(Query):
    """Parameters of the list of settings."""

    limit: Limit = 100
    after: Name = ""
    pending: bool = False
    """Whether topics without settings are listed, too, if messages for them are pending."""


class TopicQuery(Query):
    """Parameters of one topic."""

    topic: Name


class AccountQuery(Query):
    """Parameters of one account."""

    account: Annotated[str, msgspec.Meta(min_length=1, max_length=_MAX_ACCOUNT_CHARACTERS)]


async def delay_settings(api: Api, query: DelaySettingsQuery) -> DelaySettings:
    """Return a page of topics with settings, and all accounts with settings."""
    broker, table = api.broker, api.broker.delay_settings
    listed = set(table.topics)
    if query.pending:
        listed.update(name for name in broker.delivery.timeline.partitions.topics() if name != UNKNOWN_TOPIC)
    page = nsmallest(query.limit + 1, (name for name in listed if name > query.after))
    following = page[query.limit - 1] if len(page) > query.limit else None
    accounts = [] if query.after else sorted(table.accounts)
    return DelaySettings(
        as_of_ms=broker.now_ms(),
        topics=await _of_topics(broker, page[: query.limit]),
        total=len(listed),
        next=following,
        accounts=[_of_account(broker, name) for name in accounts],
    )


async def topic_settings(api: Api, query: TopicQuery) -> TopicDelays:
    """Return the settings of a topic."""
    _check_known(api.broker, query.topic)
    return (await _of_topics(api.broker, [query.topic]))[0]


async def set_topic_settings(api: Api, query: TopicQuery, wanted: TopicDelaySettings) -> TopicDelays:
    """Replace the settings of a topic; without members, they are removed."""
    broker, topic = api.broker, query.topic
    _check_known(broker, topic)
    if topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX)) or broker.topics.is_system(topic):
        raise ApiError(
            409,
            "no_limits",
            f"{topic[:127]!r} is a topic of a group or of the broker, whose delayed messages have no limits: name a"
            " topic that producers send to",
        )
    await _change(api, lambda: broker.delay_settings.put_topic(topic, wanted))
    _logger.info("delay settings of topic %s: %s", topic, _shown(wanted), extra={"topic": topic})
    return (await _of_topics(broker, [topic]))[0]


async def account_settings(api: Api, query: AccountQuery) -> AccountDelays:
    """Return the settings of an account."""
    return _of_account(api.broker, query.account)


async def set_account_settings(api: Api, query: AccountQuery, wanted: AccountDelaySettings) -> AccountDelays:
    """Replace the settings of an account; without members, they are removed."""
    broker, account = api.broker, query.account
    if broker.access is None:
        raise ApiError(409, "no_accounts", "the broker has no accounts: enable access control first (aclEnable=true)")
    await _change(api, lambda: broker.delay_settings.put_account(account, wanted))
    _logger.info("delay settings of account %s: %s", account, _shown(wanted))
    return _of_account(broker, account)


def _check_known(broker: "Broker", topic: str) -> None:
    if topic not in broker.topics.table and topic not in broker.delay_settings.topics:
        raise no_topic(topic)


async def _change(api: Api, put: Callable[[], None]) -> None:
    """Change the table, write it, and wait until replicas have it. ApiError."""
    broker = api.broker
    if broker.config.read_only:
        raise ApiError(409, "read_only", "the broker was started read-only: change the settings of a writing broker")
    try:
        put()
    except RequestError as error:
        raise ApiError(409, "too_many", error.remark) from None
    failure = broker.persist_definitions()
    if failure is not None:
        raise ApiError(
            503,
            "not_kept",
            f"the change is in effect but could not be written ({failure}): repair the disk and repeat the request",
        )
    await wait_for_tables(api.server)


def _shown(settings: TopicDelaySettings | AccountDelaySettings) -> str:
    return msgspec.json.encode(settings).decode()


async def _of_topics(broker: "Broker", topics: list[str]) -> list[TopicDelays]:
    """Return settings and pending messages of topics. ApiError if the index of pending messages cannot be read."""
    timeline, slices, next_due_ms = broker.delivery.timeline, TimeSlices(), dict[str, int]()
    partitions = timeline.partitions
    rows = []
    with reading_index():
        numbers = [number for topic in topics for number in partitions.of_topic(topic)]
        for _ in find_next_due_times(timeline, numbers, next_due_ms):
            await slices.yield_if_due()
        for topic in topics:
            await slices.yield_if_due()
            latest = [due_ms for due_ms in latest_due_times(timeline, partitions.of_topic(topic)) if due_ms is not None]
            pending = partitions.totals(topic)
            row = TopicDelays(
                topic=clean_text(topic),
                exists=topic in broker.topics.table,
                settings=broker.delay_settings.of_topic(topic),
                pending=pending.messages,
                pending_bytes=pending.bytes,
                next_due_ms=next_due_ms.get(topic),
                latest_due_ms=max(latest, default=None) if pending.messages else None,
                treatment=broker.delivery.control.treatments.in_progress(topic),
            )
            rows.append(row)
    return rows


def _of_account(broker: "Broker", account: str) -> AccountDelays:
    totals = broker.delivery.timeline.partitions.of_account(account)
    return AccountDelays(
        account=account,
        settings=broker.delay_settings.of_account(account),
        pending=totals.messages,
        pending_bytes=totals.bytes,
    )
