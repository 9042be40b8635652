"""The broker: its tables, its store, its delivery, and the dispatch of requests to processors."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Container, Mapping
from types import GeneratorType
from typing import TYPE_CHECKING, Protocol, TypeVar

from delaymq.broker.admin.drain import DrainMode, DrainState
from delaymq.broker.auto_creation import AutoCreation
from delaymq.broker.config_tables import PersistTask, Tables
from delaymq.broker.filters import CompileWork
from delaymq.broker.groups.activity import GroupActivity
from delaymq.broker.groups.offset_commits import OffsetCommits
from delaymq.broker.groups.queue_locks import QueueLocks
from delaymq.broker.groups.slow_readers import SlowReaders
from delaymq.broker.pull.arrival_notifier import OnArrival
from delaymq.broker.pull.queue_reader import PropertyWork
from delaymq.broker.results import RelayedRequests, Result, TimeSliced
from delaymq.broker.session import Session
from delaymq.broker.statistics.metric_labels import OTHER, LabelLimiter
from delaymq.broker.store_settings import store_options
from delaymq.config import BrokerConfig
from delaymq.config.running import RunningSettings
from delaymq.protocol.bodies import TopicConfig
from delaymq.protocol.codes import SEND_CODES, ResponseCode
from delaymq.protocol.command import FLAG_ONEWAY, Command, Response
from delaymq.protocol.errors import RequestError
from delaymq.throttled_log import ThrottledLogger

if TYPE_CHECKING:
    from delaymq.broker.access.access import Access
    from delaymq.broker.delivery import Delivery
    from delaymq.broker.parts import Parts
    from delaymq.broker.stored_records import StoredRecords
    from delaymq.broker.transactions import Transactions
    from delaymq.store.message_store import MessageStore

_logger = logging.getLogger(__name__)
T = TypeVar("T")

# How much of an unexpected error's text goes into the answer.
_SHOWN_CHARACTERS = 256
# Results that something is still to be done for, whether or not somebody is told the end.
_DONE_ALSO_ONE_WAY = (RelayedRequests, GeneratorType, TimeSliced)

Processor = Callable[["Broker", Session, Command], Result]
"""Answers the requests of one code."""


class RequestTable(Protocol):
    """What brokers serve (processors.table); passed in, since processors know the broker."""

    def processors_for(self, *, read_only: bool, without_offsets: bool, guarded: bool) -> Mapping[int, Processor]:
        """The processors of a broker that only reads its store, cannot read consumer offsets, or has access control."""

    def refusal(self, code: int) -> Response:
        """The answer to a request code that is not served."""


class Broker:
    """One broker over one open store. Attributes without a comment are what their names say, for the processors."""

    def __init__(
        self,
        parts: Parts,
        store: MessageStore,
        delivery: Delivery,
        transactions: Transactions,
        records: StoredRecords,
        tables: Tables,
        requests: RequestTable,
        access: Access | None = None,
        settings: RunningSettings[BrokerConfig] | None = None,
    ) -> None:
        """See `opening.open_broker`."""
        self.config = config = parts.config
        self.now_ms = now_ms = parts.now_ms
        self.store = store
        self.records = records
        self.stats = parts.stats
        self.topics = parts.topics
        self.groups = parts.groups
        self.offsets = parts.offsets
        self.clients = parts.clients
        self.delivery = delivery
        self.transactions = transactions
        self.topic_series = parts.topic_series
        self.group_series = LabelLimiter(config.metrics_max_topics)
        self.access = access
        """Who may ask for what; None without aclEnable."""
        self.settings = settings or RunningSettings(BrokerConfig)
        """Where the configuration is from."""
        self.on_settings: Callable[[BrokerConfig], None] | None = None
        """Called with a configuration that was changed."""
        self.address = parts.address
        """What clients know."""
        self.store_host = parts.store_host
        self.message_id_prefix = parts.store_host.hex().upper()
        self.activity = GroupActivity(parts.stats.boot_ms)
        self.committing = OffsetCommits(self.offsets, self.topics, self.groups, self.activity, now_ms)
        self.creations = AutoCreation(config, self.groups, has_accounts=access is not None)
        self.locks = QueueLocks()
        self.slow_readers = SlowReaders()
        self.property_work = PropertyWork()
        self.compile_work = CompileWork(now_ms)
        self.writable = True
        """False while the broker is being taken out of service: sends are refused, pulls are served."""
        self.drain = DrainState(parts.stats.boot_ms)
        """How far producers are held off while the broker goes on running."""
        self.waits_for_flush = config.flush_disk_type == "SYNC_FLUSH"
        self._arrivals = parts.arrivals
        self._tables = tables
        self._closed = False
        self._throttled = ThrottledLogger(_logger, now_ms)
        self._requests = requests
        self._processors = self._served()
        self._derive()

    # Requests

    def handle(self, session: Session, command: Command) -> Result:
        """What `command` is answered with; None for one-way requests. Never raises; steps may: run them `guarded`."""
        processor = self._processors.get(command.code)
        result: Result
        try:
            if self.access is not None:
                self.access.check(session, command)
            result = self._requests.refusal(command.code) if processor is None else processor(self, session, command)
        except RequestError as error:
            result = self._refused(command, error)
        except Exception as error:
            result = self._failed(command.code, error, session, command)
        if self._arrivals.waiting:
            self._arrivals.announce(self.store.confirmed_offset)
        if command.flag & FLAG_ONEWAY and type(result) not in _DONE_ALSO_ONE_WAY:
            return None
        return result

    def next_step(self, session: Session, command: Command, work: TimeSliced) -> Result:
        """Goes on with work that `handle` began: `work` itself while there is more, then what `handle` would return."""
        result: Result = work
        try:
            next(work.steps)
        except StopIteration as end:
            result = end.value
        except RequestError as error:
            result = self._refused(command, error)
        except Exception as error:
            result = self._failed(command.code, error, session, command)
        if self._arrivals.waiting:
            self._arrivals.announce(self.store.confirmed_offset)
        return None if result is not work and command.flag & FLAG_ONEWAY else result

    def guarded(self, code: int, run: Callable[[], T]) -> T | Response:
        """`run()` for a request of this code, with whatever it raises turned into the answer."""
        try:
            return run()
        except RequestError as error:
            return Response(error.code, error.remark)
        except Exception as error:
            return self._failed(code, error)

    def _failed(
        self, code: int, error: Exception, session: Session | None = None, command: Command | None = None
    ) -> Response:
        about: dict[str, object] = {"code": code}
        if session is not None and command is not None:
            stated = command.fields
            about |= {"peer": session.remote_address, "topic": stated.get("topic", stated.get("b"))}
            about |= {"group": stated.get("consumerGroup", stated.get("group"))}
        # A peer may be able to cause this at will, so it is not logged each time.
        self._throttled.warning("a request (code %d) failed unexpectedly", code, error=error, **about)
        return Response(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {str(error)[:_SHOWN_CHARACTERS]}")

    def _refused(self, command: Command, error: RequestError) -> Response:
        fields = {}
        if command.code in SEND_CODES:
            self.stats.refused[error.code] = self.stats.refused.get(error.code, 0) + 1
            # Java clients read these of every answer to a send.
            fields = {"MSG_REGION": self.region, "TRACE_ON": self.trace_on}
        return Response(error.code, error.remark, fields)

    # Timers and events of the server

    @property
    def on_arrival(self) -> OnArrival | None:
        """Called with topic, queue id, queue offset, tags code and properties of what consumers may see from now on.

        It is called between requests; it may resume held pulls.
        """
        return self._arrivals.on_arrival

    @on_arrival.setter
    def on_arrival(self, function: OnArrival | None) -> None:
        self._arrivals.on_arrival = function

    def watch_arrivals(
        self, function: OnArrival, queues: Container[tuple[str, int]], by_property: Collection[tuple[str, int]] = ()
    ) -> None:
        """As `on_arrival`, only for records of `queues` where that loses nothing; with properties for `by_property`."""
        self._arrivals.on_arrival = function
        self._arrivals.property_interest = by_property
        self._arrivals.interest = None if self.waits_for_flush else queues

    def announce_arrivals(self) -> None:
        """To be called when the store confirmed more (a flush ended) and after the delivery handed messages over."""
        if self._arrivals.waiting:
            self._arrivals.announce(self.store.confirmed_offset)

    def hand_over(self, now_ms: int, budget: int) -> int:
        """Hands due messages over (`Delivery.hand_over`) and tells the held pulls; how many were handed over."""
        count = self.delivery.hand_over(now_ms, budget)
        self.announce_arrivals()
        return count

    def session_closed(self, session: Session) -> None:
        """A connection ended."""
        self.clients.session_closed(session)
        self.creations.session_closed(session)
        if self.access is not None:
            self.access.session_closed(session)

    def expire_clients(self, now_ms: int) -> list[Session]:
        """Drops silent clients and unrenewed locks; returns the connections of the silent, which may be closed."""
        self.locks.expire(now_ms)
        return self.clients.expire(now_ms)

    def persist_task(self, now_ms: int) -> PersistTask | None:
        """Writes changed topics and groups at once; offsets and clients in a task: `run` it in a thread, `finish` here.

        Only one task may be under way. None: nothing is left to write.
        """
        self._tables.write_definitions()
        self.transactions.state_progress()
        writes = self._tables.changed(now_ms)
        return PersistTask(self._tables, writes) if writes else None

    def persist_definitions(self) -> OSError | None:
        """Writes topics and groups if they changed: they are on the disk afterwards, or this is what failed."""
        return self._tables.write_definitions()

    def forget_offsets(self) -> None:
        """Gives up offsets that cannot be read: groups begin as new ones do. OSError: nothing changed."""
        self._tables.forget_offsets()
        self._processors = self._served()

    def _served(self) -> Mapping[int, Processor]:
        return self._requests.processors_for(
            read_only=self.config.read_only,
            without_offsets=bool(self.offsets.unreadable),
            guarded=self.access is not None,
        )

    def forget_counts(self, topic: str) -> None:
        """The topic was deleted, and so are its series; what it shares with others stays: a sum must not go back."""
        heir = OTHER if self.topic_series.forget(topic) else None
        self.stats.forget_topic(topic, heir)
        self.delivery.forget_topic(topic, heir)

    def set_drain(self, mode: DrainMode, lease_ms: int = 0) -> bool:
        """Begins, renews or ends a drain; whether NameServers have to be told, which `topics.changed` is called for."""
        withdrawn = self.drain.withdrawn
        self.drain.take(mode, lease_ms, self.now_ms())
        if self.drain.withdrawn is withdrawn:
            return False
        self.topics.announce()
        return True

    def freeze(self) -> None:
        """The broker is about to stop: nothing more is stored, and closing connections are not taken as leaving."""
        self.writable = False
        self.clients.frozen = True

    def close(self) -> None:
        """Writes everything and closes the store: a clean stop."""
        if self._closed:
            return
        self._closed = True
        self.clients.dirty = True
        flush = self.store.flush_task()
        if flush is not None:
            # So that what is stated about transactions is all that is settled.
            flush.run()
            flush.finish()
        task = self.persist_task(self.now_ms())
        if task is not None:
            task.run()
            task.finish()
        try:
            self.delivery.close()
        finally:
            self.store.close()

    # Configuration

    def apply(self, config: BrokerConfig) -> None:
        """Takes a changed configuration; keys that need a restart must have their old values in it."""
        if config.levels != self.config.levels:
            self.delivery.set_levels(config.levels)
        self.config = config
        self.delivery.set_settings(config)
        self.transactions.apply(config)
        self.store.set_options(store_options(config))
        self.topics.apply(config)
        self.groups.apply(config)
        self.creations.limits = config
        self.topic_series.set_limit(config.metrics_max_topics)
        self.group_series.set_limit(config.metrics_max_topics)
        self._derive()
        if self.on_settings is not None:
            self.on_settings(config)

    def _derive(self) -> None:
        # What the hot paths need of the configuration, as plain attributes.
        config = self.config
        self.cluster_name = config.broker_cluster_name
        self.region = config.region_id
        self.trace_on = "true" if config.trace_on else "false"
        self.max_message_size = config.max_message_size
        self.max_pull_count = config.max_transfer_count_on_message_in_memory
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.in_memory_bytes = memory_bytes * config.access_message_in_memory_max_ratio // 100
        """How far behind the log's end messages are taken to be in the page cache."""

    def register_body(self, topics: dict[str, TopicConfig] | None = None) -> bytes:
        """What NameServers are told: all topics, or the given ones, as producers and consumers may use them now."""
        return self.topics.register_body(
            self.topics.table if topics is None else topics, withdrawn=self.drain.withdrawn
        )
