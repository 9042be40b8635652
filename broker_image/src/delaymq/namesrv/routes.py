"""Brokers, their topics, and the routes that follow from both.

A broker whose connection closed keeps its routes for a grace period: clients of a restarted broker would otherwise
come back only with their next look at the routes, half a minute later. While it lasts, the broker's write permission
is withheld in answers if another broker takes writes for the topic.
"""

from dataclasses import replace
from typing import Final

from msgspec import structs

from delaymq.namesrv.brokers import BrokerGroup, LiveBroker, Registration
from delaymq.namesrv.links import Links
from delaymq.namesrv.shares import Shares
from delaymq.protocol.bodies import (
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    DataVersion,
    RouteQueues,
    TopicConfig,
    TopicRoute,
)

PERM_READ: Final = 4
PERM_WRITE: Final = 2
FLAG_UNIT: Final = 1
FLAG_UNIT_SUBSCRIPTION: Final = 2

MAX_BROKERS: Final = 10_000
"""Addresses that may be registered; a peer must not fill the memory with brokers that do not exist."""
MAX_TOPICS: Final = 200_000
"""Topics of all brokers together, for the same reason; as many as one registration can hold."""
MAX_ROUTES: Final = 1_000_000
"""Topics of each broker, counted together: brokers that share names could otherwise multiply the two limits above."""
MAX_EXPIRED_PER_SLICE: Final = 100
"""Brokers dropped at a time: each may take many topics with it, and clients wait for their routes meanwhile."""


class Routes:
    """All tables of the NameServer but the key-value settings."""

    def __init__(self) -> None:
        self.groups: dict[str, BrokerGroup] = {}
        self.live: dict[str, LiveBroker] = {}
        self.topics: dict[str, dict[str, RouteQueues]] = {}
        """Topic → broker name → queues, with the permission that the broker or an administrator gave."""
        self.links = Links()
        self.broker_shares = Shares(MAX_BROKERS, "brokers")
        self.topic_shares = Shares(MAX_TOPICS, "topics")
        self.route_shares = Shares(MAX_ROUTES, "topics of brokers")
        self._topic_payers: dict[str, bytes] = {}

    # Brokers come and go

    def room_problem(self, registration: Registration, payer: bytes) -> str | None:
        """Why there is no room for what a registration adds; None: `register` may take it."""
        problem = self.broker_shares.problem(payer) if registration.address not in self.live else None
        if problem is not None or registration.broker_id != MASTER_ID:
            return problem
        group = self.groups.get(registration.name)
        added = registration.topics.keys() - (group.topics.keys() if group is not None else set())
        topics = self.topic_shares.problem(payer, len(added - self.topics.keys()))
        return topics if topics is not None else self.route_shares.problem(payer, len(added))

    def without_new_topics(self, registration: Registration) -> Registration | None:
        """What is left of a registration where topics have no room, for a broker that is registered; None: nothing."""
        known = self.live.get(registration.address)
        if known is None or known.name != registration.name:
            return None
        group = self.groups[registration.name]
        topics = {topic: config for topic, config in registration.topics.items() if topic in group.topics}
        # Another version than the broker's: it goes on telling all of them.
        return replace(registration, topics=topics, data_version=DataVersion(0, 0))

    def register(
        self, registration: Registration, session_id: int, payer: bytes, now_ms: int
    ) -> tuple[str | None, str | None]:
        """Takes a registration, full or partial; returns the master's replication address and address to a slave.

        Topics are taken over from a master with a changed data version or a newly seen one; none is ever removed.
        `payer` is charged for what is new.
        """
        known = self.live.get(registration.address)
        if known is not None and known.name != registration.name:
            self.drop(registration.address)  # another broker took over the address
            known = None
        is_new = self._join_group(registration)
        # After a lost connection the broker may have restarted: what it says then replaces a wiped permission too.
        changed = known is None or known.lost_ms is not None or known.data_version != registration.data_version
        if registration.broker_id == MASTER_ID and (is_new or changed):
            group = self.groups[registration.name]
            for topic, config in registration.topics.items():
                self._set_queues(topic, group, config, payer)
        if known is None:
            self.broker_shares.add(payer)
        self.links.add(registration.address, session_id, payer)
        self.live[registration.address] = LiveBroker(
            registration.address,
            registration.name,
            registration.broker_id,
            registration.ha_address,
            registration.data_version,
            payer if known is None else known.payer,
            now_ms,
        )
        return self._master_of(registration)

    def _join_group(self, registration: Registration) -> bool:
        group = self.groups.get(registration.name)
        if group is None:
            group = self.groups[registration.name] = BrokerGroup(registration.name, registration.cluster)
        if registration.broker_id == MASTER_ID:
            group.cluster = registration.cluster
        # A slave that became the master registers its address under another id.
        for broker_id, address in list(group.addresses.items()):
            if address == registration.address and broker_id != registration.broker_id:
                del group.addresses[broker_id]
        replaced = group.addresses.get(registration.broker_id)
        if replaced is not None and replaced != registration.address:
            self._forget(replaced)  # the same broker at a new address, as a moved pod
        group.addresses[registration.broker_id] = registration.address
        return replaced is None

    def _forget(self, address: str) -> LiveBroker | None:
        broker = self.live.pop(address, None)
        if broker is not None:
            self.broker_shares.drop(broker.payer)
            self.links.forget(address)
        return broker

    def _set_queues(self, topic: str, group: BrokerGroup, config: TopicConfig, payer: bytes) -> None:
        if topic not in group.topics:
            group.topics[topic] = payer
            self.route_shares.add(payer)
        if topic not in self.topics:
            self.topics[topic] = {}
            self._topic_payers[topic] = payer
            self.topic_shares.add(payer)
        self.topics[topic][group.name] = RouteQueues(
            group.name, config.read_queue_nums, config.write_queue_nums, config.perm, config.topic_sys_flag
        )

    def _master_of(self, registration: Registration) -> tuple[str | None, str | None]:
        if registration.broker_id == MASTER_ID:
            return None, None
        address = self.groups[registration.name].addresses.get(MASTER_ID)
        master = self.live.get(address) if address else None
        return (master.ha_address, master.address) if master is not None else (None, None)

    def data_version_of(self, address: str) -> DataVersion | None:
        """What a broker registered last; None if it must register again, as after a lost connection."""
        broker = self.live.get(address)
        return broker.data_version if broker is not None and broker.lost_ms is None else None

    def saw(self, address: str, session_id: int, now_ms: int) -> None:
        """A sign of life without a registration, which counts over the connection of one."""
        broker = self.live.get(address)
        if broker is not None and session_id in self.links.of(address):
            broker.seen_ms = now_ms

    def session_closed(self, session_id: int, now_ms: int, grace_ms: int) -> list[str]:
        """Begins the grace period of the brokers that registered over this connection, and over no other one that is
        open; returns their addresses.

        Slaves have none: consumers that were sent to one go back to its master as soon as it is gone from the route.
        """
        lost = [self.live[address] for address in self.links.closed(session_id)]
        for broker in lost:
            broker.lost_ms = now_ms
            if grace_ms <= 0 or broker.broker_id != MASTER_ID:
                self.drop(broker.address)
        return [broker.address for broker in lost]

    def expire(self, now_ms: int, expire_ms: int, grace_ms: int) -> list[tuple[LiveBroker, frozenset[int]]]:
        """Drops brokers that were silent, or whose connection was closed, for too long; of many only some.

        Returns them with the sessions over which they were registered.
        """
        expired = [
            broker
            for broker in self.live.values()
            if now_ms - broker.seen_ms > expire_ms
            or (broker.lost_ms is not None and now_ms - broker.lost_ms >= grace_ms)
        ]
        del expired[MAX_EXPIRED_PER_SLICE:]
        found = [(broker, frozenset(self.links.of(broker.address))) for broker in expired]
        for broker in expired:
            self.drop(broker.address)
        return found

    def next_grace_end_ms(self, grace_ms: int) -> int | None:
        """When the first grace period ends, if one runs."""
        ends = [broker.lost_ms + grace_ms for broker in self.live.values() if broker.lost_ms is not None]
        return min(ends, default=None)

    def unregister(self, name: str, address: str, broker_id: int) -> None:
        """Forgets an address at once; the broker said that it will not come back."""
        group = self.groups.get(name)
        if address in self.live and self.live[address].name == name:
            self.drop(address)
        elif group is not None and group.addresses.get(broker_id) == address:
            del group.addresses[broker_id]
            self._drop_if_empty(group)

    def drop(self, address: str) -> None:
        """Forgets an address, and the broker's topics with its last one."""
        broker = self._forget(address)
        group = self.groups.get(broker.name) if broker is not None else None
        if broker is None or group is None:
            return
        if group.addresses.get(broker.broker_id) == address:
            del group.addresses[broker.broker_id]
        self._drop_if_empty(group)

    def _drop_if_empty(self, group: BrokerGroup) -> None:
        if group.addresses:
            return
        del self.groups[group.name]
        for topic in list(group.topics):
            self._drop_queues(topic, group)

    def _drop_queues(self, topic: str, group: BrokerGroup) -> None:
        brokers = self.topics[topic]
        del brokers[group.name]
        self.route_shares.drop(group.topics.pop(topic))
        if not brokers:
            del self.topics[topic]
            self.topic_shares.drop(self._topic_payers.pop(topic))

    # What administrators change

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """Forgets a topic, of one cluster or of all."""
        for name in list(self.topics.get(topic, ())):
            group = self.groups[name]
            if cluster is None or group.cluster == cluster:
                self._drop_queues(topic, group)

    def wipe_write_permission(self, broker_name: str) -> int:
        """Takes the write permission from all topics of a broker; returns their number."""
        queues = self._queues_of(broker_name)
        for each in queues:
            each.perm &= ~PERM_WRITE
        return len(queues)

    def add_write_permission(self, broker_name: str) -> int:
        """Gives all topics of a broker read and write permission; returns their number."""
        queues = self._queues_of(broker_name)
        for each in queues:
            each.perm = PERM_READ | PERM_WRITE
        return len(queues)

    def _queues_of(self, broker_name: str) -> list[RouteQueues]:
        group = self.groups.get(broker_name)
        return [] if group is None else [self.topics[topic][broker_name] for topic in group.topics]

    # What clients ask

    def route(self, topic: str) -> TopicRoute | None:
        """Brokers and queues of a topic; None if no broker has it."""
        queues = list(self.topics.get(topic, {}).values())
        if not queues:
            return None
        away = {each.broker_name for each in queues if self._is_away(each.broker_name)}
        if away and any(each.perm & PERM_WRITE and self._takes_writes(each.broker_name) for each in queues):
            queues = [_without_write(each) if each.broker_name in away else each for each in queues]
        return TopicRoute([self._broker_data(each.broker_name) for each in queues], queues)

    def _is_away(self, broker_name: str) -> bool:
        address = self.groups[broker_name].addresses.get(MASTER_ID)
        master = self.live.get(address) if address is not None else None
        return master is not None and master.lost_ms is not None

    def _takes_writes(self, broker_name: str) -> bool:
        return MASTER_ID in self.groups[broker_name].addresses and not self._is_away(broker_name)

    def _broker_data(self, broker_name: str) -> BrokerData:
        group = self.groups[broker_name]
        return BrokerData(group.name, group.cluster, dict(sorted(group.addresses.items())))

    def cluster_info(self) -> ClusterInfo:
        """All brokers, by name and by cluster."""
        clusters: dict[str, list[str]] = {}
        for group in self.groups.values():
            clusters.setdefault(group.cluster, []).append(group.name)
        return ClusterInfo({name: self._broker_data(name) for name in self.groups}, clusters)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Topics that a broker of this cluster has."""
        found: dict[str, None] = {}
        for group in self.groups.values():
            if group.cluster == cluster:
                found.update(dict.fromkeys(group.topics))
        return list(found)

    def topics_with_flags(self, *, wanted: int, unwanted: int = 0) -> list[str]:
        """Topics by the unit bits of their sys flag, as their first broker registered it."""
        flags = ((topic, next(iter(brokers.values())).topic_sys_flag) for topic, brokers in self.topics.items())
        return [topic for topic, flag in flags if flag & wanted and not flag & unwanted]


def _without_write(queues: RouteQueues) -> RouteQueues:
    return structs.replace(queues, perm=queues.perm & ~PERM_WRITE)
