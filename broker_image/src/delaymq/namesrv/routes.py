"""Brokers, their topics, and the resulting routes.

A broker whose connection closed keeps its routes for a grace period; otherwise, clients of a restarted broker would
reconnect only at their next route update, half a minute later. During the grace period, responses omit the broker's
write permission if another broker accepts writes for the topic.
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
"""Maximum registered addresses, so that a peer cannot exhaust the memory with fictitious brokers."""
MAX_TOPICS: Final = 200_000
"""Maximum topics of all brokers, for the same reason; the maximum of one registration."""
MAX_ROUTES: Final = 1_000_000
"""Maximum pairs of broker and topic, because brokers with common topics could otherwise multiply both limits."""
MAX_EXPIRED_PER_SLICE: Final = 100
"""Maximum brokers removed per time slice, because each may have many topics."""


class Routes:
    """All tables of the NameServer except the key-value configuration."""

    def __init__(self) -> None:
        self.groups: dict[str, BrokerGroup] = {}
        self.live: dict[str, LiveBroker] = {}
        self.topics: dict[str, dict[str, RouteQueues]] = {}
        """Topic → broker name → queues, with the permission set by the broker or an administrator."""
        self.links = Links()
        self.broker_shares = Shares(MAX_BROKERS, "brokers")
        self.topic_shares = Shares(MAX_TOPICS, "topics")
        self.route_shares = Shares(MAX_ROUTES, "topics of brokers")
        self._topic_payers: dict[str, bytes] = {}

    # Registration and expiry

    def room_problem(self, registration: Registration, payer: bytes) -> str | None:
        """Return why a registration exceeds a limit; None: `register` may be called."""
        problem = self.broker_shares.problem(payer) if registration.address not in self.live else None
        if problem is not None or registration.broker_id != MASTER_ID:
            return problem
        group = self.groups.get(registration.name)
        added = registration.topics.keys() - (group.topics.keys() if group is not None else set())
        topics = self.topic_shares.problem(payer, len(added - self.topics.keys()))
        return topics if topics is not None else self.route_shares.problem(payer, len(added))

    def without_new_topics(self, registration: Registration) -> Registration | None:
        """Return a registration without new topics, for a full table; None if the broker is not registered."""
        known = self.live.get(registration.address)
        if known is None or known.name != registration.name:
            return None
        group = self.groups[registration.name]
        topics = {topic: config for topic, config in registration.topics.items() if topic in group.topics}
        # A different version than the broker's, so that it keeps sending all topics.
        return replace(registration, topics=topics, data_version=DataVersion(0, 0))

    def register(
        self, registration: Registration, session_id: int, payer: bytes, now_ms: int
    ) -> tuple[str | None, str | None]:
        """Apply a full or partial registration; for a slave, return the master's replication address and address.

        Topics are updated from a new master or one with a changed data version; none is ever removed. New entries are
        charged to `payer`.
        """
        known = self.live.get(registration.address)
        if known is not None and known.name != registration.name:
            self.drop(registration.address)  # another broker took over the address
            known = None
        is_new = self._join_group(registration)
        # After a lost connection the broker may have restarted, so its data also replaces a wiped permission.
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
        # A promoted slave registers its address under another id.
        for broker_id, address in list(group.addresses.items()):
            if address == registration.address and broker_id != registration.broker_id:
                del group.addresses[broker_id]
        replaced = group.addresses.get(registration.broker_id)
        if replaced is not None and replaced != registration.address:
            self._forget(replaced)  # the same broker at a new address, such as a moved pod
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
        """Return the last data version; None if the broker must register again, as after a lost connection."""
        broker = self.live.get(address)
        return broker.data_version if broker is not None and broker.lost_ms is None else None

    def saw(self, address: str, session_id: int, now_ms: int) -> None:
        """Record a sign of life without a registration, if it comes over a registering connection."""
        broker = self.live.get(address)
        if broker is not None and session_id in self.links.of(address):
            broker.seen_ms = now_ms

    def session_closed(self, session_id: int, now_ms: int, grace_ms: int) -> list[str]:
        """Start the grace period of the brokers registered only over this connection, and return their addresses.

        Slaves have no grace period: consumers redirected to one return to its master when it is removed from the route.
        """
        lost = [self.live[address] for address in self.links.closed(session_id)]
        for broker in lost:
            broker.lost_ms = now_ms
            if grace_ms <= 0 or broker.broker_id != MASTER_ID:
                self.drop(broker.address)
        return [broker.address for broker in lost]

    def expire(self, now_ms: int, expire_ms: int, grace_ms: int) -> list[tuple[LiveBroker, frozenset[int]]]:
        """Remove brokers that were silent or disconnected for too long, up to a limit per call.

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
        """Return when the next grace period ends; None if there is none."""
        ends = [broker.lost_ms + grace_ms for broker in self.live.values() if broker.lost_ms is not None]
        return min(ends, default=None)

    def unregister(self, name: str, address: str, broker_id: int) -> None:
        """Remove an address immediately."""
        group = self.groups.get(name)
        if address in self.live and self.live[address].name == name:
            self.drop(address)
        elif group is not None and group.addresses.get(broker_id) == address:
            del group.addresses[broker_id]
            self._drop_if_empty(group)

    def drop(self, address: str) -> None:
        """Remove an address, and with the last address of a broker its topics."""
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

    # Changes by administrators

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """Remove a topic, from one cluster or from all."""
        for name in list(self.topics.get(topic, ())):
            group = self.groups[name]
            if cluster is None or group.cluster == cluster:
                self._drop_queues(topic, group)

    def wipe_write_permission(self, broker_name: str) -> int:
        """Revoke the write permission of all topics of a broker; return their number."""
        queues = self._queues_of(broker_name)
        for each in queues:
            each.perm &= ~PERM_WRITE
        return len(queues)

    def add_write_permission(self, broker_name: str) -> int:
        """Grant read and write permission to all topics of a broker; return their number."""
        queues = self._queues_of(broker_name)
        for each in queues:
            each.perm = PERM_READ | PERM_WRITE
        return len(queues)

    def _queues_of(self, broker_name: str) -> list[RouteQueues]:
        group = self.groups.get(broker_name)
        return [] if group is None else [self.topics[topic][broker_name] for topic in group.topics]

    # Queries of clients

    def route(self, topic: str) -> TopicRoute | None:
        """Return the brokers and queues of a topic; None if no broker has it."""
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

    def has_cluster(self, cluster: str) -> bool:
        """Return whether a broker of this cluster is registered."""
        return any(group.cluster == cluster for group in self.groups.values())

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers, by name and by cluster."""
        clusters: dict[str, list[str]] = {}
        for group in self.groups.values():
            clusters.setdefault(group.cluster, []).append(group.name)
        return ClusterInfo({name: self._broker_data(name) for name in self.groups}, clusters)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics of a cluster's brokers."""
        found: dict[str, None] = {}
        for group in self.groups.values():
            if group.cluster == cluster:
                found.update(dict.fromkeys(group.topics))
        return list(found)

    def topics_with_flags(self, *, wanted: int, unwanted: int = 0) -> list[str]:
        """Return topics by the unit bits of their sys flag, as registered by their first broker."""
        flags = ((topic, next(iter(brokers.values())).topic_sys_flag) for topic, brokers in self.topics.items())
        return [topic for topic, flag in flags if flag & wanted and not flag & unwanted]


def _without_write(queues: RouteQueues) -> RouteQueues:
    return structs.replace(queues, perm=queues.perm & ~PERM_WRITE)
