"""The broker: its tables, its store, its delivery, and the dispatch of requests to processors."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Container
from types import GeneratorType
from typing import TYPE_CHECKING, TypeVar

from delaymq.broker.admin.drain import Drain, DrainMode
from delaymq.broker.auto_creation import AutoCreation
from delaymq.broker.config_tables import PersistTask, Tables
from delaymq.broker.delivery import Delivery
from delaymq.broker.delivery.status import DeliveryCounters
from delaymq.broker.filters import CompileWork
from delaymq.broker.groups.activity import GroupActivity
from delaymq.broker.groups.client_registry import ClientRegistry
from delaymq.broker.groups.consumer_offsets import OffsetTable
from delaymq.broker.groups.offset_commits import OffsetCommits
from delaymq.broker.groups.queue_locks import QueueLocks
from delaymq.broker.groups.slow_readers import SlowReaders
from delaymq.broker.groups.subscription_groups import Groups
from delaymq.broker.processors.table import SEND_CODES, processors_for, refusal
from delaymq.broker.pull.arrival_notifier import ArrivalNotifier, OnArrival
from delaymq.broker.pull.queue_reader import PropertyWork
from delaymq.broker.results import Asked, InTurns, Result
from delaymq.broker.session import Session
from delaymq.broker.statistics.counters import Stats
from delaymq.broker.statistics.metric_labels import OTHER, LabelLimiter
from delaymq.broker.store_settings import looked_at, make_parent, store_options
from delaymq.broker.topics import Topics
from delaymq.broker.transactions import Transactions
from delaymq.config import BrokerConfig
from delaymq.config.running import RunningSettings
from delaymq.message import names
from delaymq.message.ids import pack_host
from delaymq.message.properties import decode_properties
from delaymq.message.record import Record
from delaymq.protocol.bodies import TopicConfig
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import FLAG_ONEWAY, Command, Response
from delaymq.protocol.errors import RequestError
from delaymq.quiet_log import QuietLog
from delaymq.store.message_store import MessageStore

if TYPE_CHECKING:
    from delaymq.broker.access.access import Access
    from delaymq.store.untrusted_offsets import NamedHead

_logger = logging.getLogger(__name__)
T = TypeVar("T")

# How much of an unexpected error's text goes into the answer.
_SHOWN_CHARACTERS = 256
# Results that something is still to be done for, whether or not somebody is told the end.
_DONE_ALSO_ONE_WAY = (Asked, GeneratorType, InTurns)


class Broker:
    """One broker over one open store. Attributes without a comment are what their names say, for the processors."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        delivery: Delivery,
        transactions: Transactions,
        arrivals: ArrivalNotifier,
        stats: Stats,
        now_ms: Callable[[], int],
    ) -> None:
        self.store = store
        self.delivery = delivery
        self.transactions = transactions
        self.stats = stats
        self.now_ms = now_ms
        self.config = config
        self.settings = RunningSettings(BrokerConfig)
        """The server says where they are from."""
        self.on_settings: Callable[[BrokerConfig], None] | None = None
        """Called with a configuration that was changed."""
        self.topics = Topics(config, config.levels.max_level, now_ms)
        self.groups = Groups(config, now_ms)
        self.offsets = OffsetTable()
        self.committing = OffsetCommits(self)
        self.creations = AutoCreation(self)
        self.clients = ClientRegistry(self._may_notify)
        self.locks = QueueLocks()
        self.slow_readers = SlowReaders()
        self.property_work = PropertyWork()
        self.compile_work = CompileWork(now_ms)
        self.access: Access | None = None
        """Who may ask for what; None without aclEnable."""
        self.writable = True
        """False while the broker is being taken out of service: sends are refused, pulls are served."""
        self.drain = Drain(stats.boot_ms)
        """How far producers are held off while the broker goes on running."""
        self.activity = GroupActivity(stats.boot_ms)
        self.topics_changed: Callable[[TopicConfig], None] | None = None
        """Called when a topic was made or changed: NameServers should be told."""
        self._arrivals = arrivals
        self._tables = Tables(store, self.topics, self.groups, self.offsets, self.clients, now_ms)
        self._closed = False
        self._processors = processors_for(read_only=config.read_only, without_offsets=False, guarded=False)
        self._quiet_log = QuietLog(_logger, now_ms)
        self.topics.changed = self._topic_changed
        delivery.on_dead_letter = self._make_dead_letter_topic
        delivery.on_delivered = stats.delivered
        self.topic_series = LabelLimiter(config.metrics_max_topics)
        self.group_series = LabelLimiter(config.metrics_max_topics)
        self.waits_for_flush = config.flush_disk_type == "SYNC_FLUSH"
        self.advertise(config.broker_ip1, config.listen_port)
        self._derive()

    @classmethod
    def open(cls, config: BrokerConfig, now_ms: Callable[[], int]) -> Broker:
        """Opens the store at the configured path, recovers, reads the tables.

        StoreError (store.errors) when the store cannot be opened, AccessError (broker.access) when its rules cannot be
        read; the text says what to do.
        """
        levels = config.levels
        stats = Stats(now_ms())
        delivery = Delivery(config, levels, now_ms, DeliveryCounters())
        transactions = Transactions(config, now_ms)
        arrivals = ArrivalNotifier()
        access = None
        if config.acl_enable:
            from delaymq.broker.access.access import Access  # most brokers run without it

            # The server closes silent connections long before that.
            max_silence_s = 2.5 * config.channel_idle_ms / 1000
            needs_tls = config.acl_admin_needs_tls
            access = Access(config.acl_path, now_ms, admin_needs_tls=needs_tls, max_silence_s=max_silence_s)
        if config.read_only:
            config = looked_at(config)
            open_store = MessageStore.open_read_only
        else:
            make_parent(config.store_path)
            open_store = MessageStore.open
        store = open_store(
            config.store_path,
            store_options(config),
            now_ms=now_ms,
            levels=levels,
            observers=(delivery, transactions, arrivals),
        )
        try:
            broker = cls(config, store, delivery, transactions, arrivals, stats, now_ms)
            if access is not None:
                access.topic_at = broker.topic_at
                access.reply_topic = names.reply_topic(config.broker_cluster_name)
                broker.access = access
            broker._tables.load(now_ms())
            broker._serve()
            delivery.attach(store)
            transactions.attach(broker)
            delivery.topic_lateness.label = broker.topic_series.label
            if config.read_only:
                delivery.holding.pause()
            store.pins.hold(delivery.name, delivery.pin)
            store.pins.hold("half messages", transactions.pin)
        except BaseException:
            store.abandon()  # a half-open broker has no state that a clean stop could keep
            raise
        return broker

    # Requests

    def handle(self, session: Session, command: Command) -> Result:
        """What `command` is answered with; None for one-way requests. Never raises; steps may: run them `guarded`."""
        processor = self._processors.get(command.code)
        result: Result
        try:
            if self.access is not None:
                self.access.check(session, command)
            result = refusal(command.code) if processor is None else processor(self, session, command)
        except RequestError as error:
            result = self._refused(command, error)
        except Exception as error:
            result = self._failed(command.code, error, session, command)
        if self._arrivals.waiting:
            self._arrivals.announce(self.store.confirmed_offset)
        if command.flag & FLAG_ONEWAY and type(result) not in _DONE_ALSO_ONE_WAY:
            return None
        return result

    def next_step(self, session: Session, command: Command, work: InTurns) -> Result:
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
        self._quiet_log.warning("a request (code %d) failed unexpectedly", code, error=error, **about)
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
        self._serve()

    def _serve(self) -> None:
        self._processors = processors_for(
            read_only=self.config.read_only,
            without_offsets=bool(self.offsets.unreadable),
            guarded=self.access is not None,
        )

    def forget_counts(self, topic: str) -> None:
        """The topic was deleted, and so are its series; what it shares with others stays: a sum must not go back."""
        heir = OTHER if self.topic_series.forget(topic) else None
        self.stats.forget_topic(topic, heir)
        self.delivery.forget_topic(topic, heir)

    def hold_off(self, mode: DrainMode, lease_ms: int = 0) -> bool:
        """Begins, renews or ends a drain; whether NameServers have to be told, which `topics_changed` is called for."""
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

    def advertise(self, address: str, port: int) -> None:
        """The address that clients know: it goes into message ids and records. The server states the bound port."""
        self.store_host = pack_host(address, port)
        self.message_id_prefix = self.store_host.hex().upper()
        self.address = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

    def apply(self, config: BrokerConfig) -> None:
        """Takes a changed configuration; keys that need a restart must have their old values in it."""
        if config.levels != self.config.levels:
            self.delivery.set_levels(config.levels)
        self.config = config
        self.delivery.set_settings(config)
        self.transactions.settings = config
        self.store.set_options(store_options(config))
        self.topics.apply(config)
        self.groups.apply(config)
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

    # Questions of several processors

    def head_at(self, physical_offset: int) -> NamedHead | None:
        """The head of the confirmed record at an offset that a client stated.

        None where no record begins, and for one that no queue names: it stands within a body, or its topic was deleted.
        """
        store = self.store
        if not store.min_offset <= physical_offset < store.confirmed_offset:
            return None
        head = store.named_head(physical_offset)
        return head if head is not None and physical_offset + head.size <= store.confirmed_offset else None

    def properties_at(self, head: NamedHead) -> dict[str, str]:
        """The properties of a record, read without its body."""
        return decode_properties(self.store.read_bytes(head.properties_at, head.properties_bytes))

    def record_at(self, physical_offset: int) -> Record | None:
        """As `head_at`, the whole record; None also when it is not sound. For those who may see the body."""
        return None if self.head_at(physical_offset) is None else self.store.record_at(physical_offset)

    def topic_at(self, physical_offset: int) -> str | None:
        """The topic of the record at an offset that a client stated, also while it waits in one of the broker's own."""
        head = self.head_at(physical_offset)
        if head is None:
            return None
        if head.topic in names.INTERNAL_TOPICS:
            return self.properties_at(head).get(names.REAL_TOPIC, head.topic)
        return head.topic

    def next_queue_file(self, queue_offset: int) -> int:
        """Queue offset at which the file behind the one of `queue_offset` begins."""
        entries = max(self.store.options.consume_queue_file_bytes // 20, 1)
        return (queue_offset // entries + 1) * entries

    def register_body(self, topics: dict[str, TopicConfig] | None = None) -> bytes:
        """What NameServers are told: all topics, or the given ones, as producers and consumers may use them now."""
        return self.topics.register_body(
            self.topics.table if topics is None else topics, withdrawn=self.drain.withdrawn
        )

    def _may_notify(self, group: str) -> bool:
        if not self.config.notify_consumer_ids_changed_enable:
            return False
        config = self.groups.table.get(group)
        return config is None or config.notify_consumer_ids_changed_enable

    def _make_dead_letter_topic(self, topic: str) -> None:
        # Without a config nobody could read what the scheduler puts there.
        self.topics.create_for_group(topic, 1, own=True)

    def _topic_changed(self, topic: TopicConfig) -> None:
        if self.topics_changed is not None:
            self.topics_changed(topic)
