"""Parts of a broker that exist before its store: tables, counters, and observers of the recovery."""

from __future__ import annotations

from collections.abc import Callable

from delaymq.broker.delivery.recovery import Replay
from delaymq.broker.delivery.settings.table import DelaySettingsTable
from delaymq.broker.groups.client_registry import ClientRegistry
from delaymq.broker.groups.consumer_offsets import OffsetTable
from delaymq.broker.groups.subscription_groups import Groups
from delaymq.broker.pull.arrival_notifier import ArrivalNotifier
from delaymq.broker.statistics.counters import Stats
from delaymq.broker.statistics.metric_labels import LabelLimiter
from delaymq.broker.topics import Topics
from delaymq.broker.transactions.ledger import Ledger
from delaymq.config import BrokerConfig
from delaymq.message.ids import pack_host


class Parts:
    """Parts that are created before the store is opened.

    Its recovery reports the log's records to the observers.
    """

    def __init__(self, config: BrokerConfig, now_ms: Callable[[], int], port: int | None = None) -> None:
        """Create the parts. `port` is the one that clients use; None: the configured one."""
        host, port = config.broker_ip1, config.listen_port if port is None else port
        self.config = config
        self.now_ms = now_ms
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        """Address that clients use."""
        self.store_host = pack_host(host, port)
        """The same address, packed as in offset message ids and records."""
        self.stats = Stats(now_ms())
        self.topics = Topics(config, config.levels.max_level, now_ms)
        self.groups = Groups(config, now_ms)
        self.offsets = OffsetTable()
        self.delay_settings = DelaySettingsTable()
        self.clients = ClientRegistry(self.groups.may_notify)
        self.topic_series = LabelLimiter(config.metrics_max_topics)
        self.replay = Replay()
        self.ledger = Ledger(config.transaction_time_out)
        self.arrivals = ArrivalNotifier()

    @property
    def observers(self) -> tuple[Replay, Ledger, ArrivalNotifier]:
        """Observers with which the store is opened."""
        return self.replay, self.ledger, self.arrivals
