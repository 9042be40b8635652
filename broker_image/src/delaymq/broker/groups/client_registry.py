"""Registry of connected clients: producers and consumers by group, from heartbeats until they leave or expire."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from sys import getsizeof
from typing import Final

from delaymq.broker.groups.change_notifier import ChangeNotifier
from delaymq.broker.groups.client_snapshot import REFRESH_MS, RememberedClients, RememberedGroup
from delaymq.broker.groups.consumer_group import Client, ConsumerGroup
from delaymq.broker.groups.heartbeat_limits import check_all, check_connection, check_consumer, cost_of, cost_of_member
from delaymq.broker.groups.restart_grace import RestartGrace
from delaymq.broker.requests.session import Session
from delaymq.protocol.bodies import ConsumerData, SubscriptionData
from delaymq.protocol.command import Command

EXPIRE_MS: Final = 120_000
"""Clients send a heartbeat every 30 s."""


class ClientRegistry:
    """Registry of clients. `may_notify(group)` states whether a group's members want notifications of changes."""

    def __init__(self, may_notify: Callable[[str], bool]) -> None:
        self.producers: dict[str, dict[int, Client]] = {}
        self._producing: dict[str, dict[tuple[int, str], Client]] = {}
        """Client id → session id and group → producer, the most recently active one last."""
        self.consumers: dict[str, ConsumerGroup] = {}
        self._expected = RestartGrace()
        self._remembered_at_ms = 0
        self._groups_of: dict[int, tuple[dict[str, int], dict[str, int]]] = {}
        """Session id → producer groups and consumer groups, each with the cost of the connection's statements about
        it."""
        self.stated_bytes = 0
        """Cost of all groups, subscriptions and memberships."""
        self._changes = ChangeNotifier(self.consumers, may_notify)
        self.frozen = False
        """Set during shutdown: clients whose connections close now will return, so their groups stay unchanged."""
        self.dirty = False
        """Whether the result of `remember` has changed since its last call."""
        self.on_remembered: Callable[[RememberedClients], None] = lambda clients: None
        """Called with each result of `remember`."""

    # Heartbeats

    def check(self, client: Client, producers: Sequence[str], consumers: Sequence[ConsumerData]) -> None:
        """Raise RequestError 1 if these groups of a heartbeat exceed the limits. Otherwise `register_…` may follow."""
        producing, consuming = self._session_groups(client.session)
        stated = producing.copy(), consuming.copy()
        more, member = 0, cost_of_member(client.client_id)
        for name in producers:
            if name not in stated[0]:
                stated[0][name] = getsizeof(name)
                more += stated[0][name] + member
        for data in consumers:
            check_consumer(data)
            cost = cost_of(data.group_name, data.subscription_data_set)
            group = self.consumers.get(data.group_name)
            more += cost - (group.stated_bytes if group is not None else 0)
            if data.group_name not in stated[1]:
                more += member
            stated[1][data.group_name] = cost
        own = sum(sum(each.values()) + member * len(each) for each in stated)
        check_connection(max(map(len, stated)), own)
        if more > 0:
            check_all(self.stated_bytes + more, own)

    def keep_alive(self, session: Session, now_ms: int) -> None:
        """Renew a connection whose heartbeat was rejected. It keeps its previous registration."""
        producing, consuming = self._session_groups(session)
        for name in producing:
            self.producers[name][session.id].updated_ms = now_ms
        for name in consuming:
            self.consumers[name].members[session.id].updated_ms = now_ms

    def register_producer(self, client: Client, group: str) -> None:
        """Add or renew a member of a producer group."""
        groups = self._session_groups(client.session)[0]
        if group not in groups:
            groups[group] = getsizeof(group)
            self.stated_bytes += groups[group]
        members = self.producers.setdefault(group, {})
        before = members.get(client.session.id)
        if before is not None:
            self._forget_producing(before, group)
            self.stated_bytes -= cost_of_member(before.client_id)
        self.stated_bytes += cost_of_member(client.client_id)
        members[client.session.id] = client
        self._producing.setdefault(client.client_id, {})[client.session.id, group] = client

    def register_consumer(self, client: Client, data: ConsumerData) -> None:
        """Add or renew a member of a consumer group, and notify the other members of changes."""
        name = data.group_name
        groups = self._session_groups(client.session)[1]
        groups[name] = cost_of(name, data.subscription_data_set)
        group = self.consumers.get(name)
        if group is None:
            group = ConsumerGroup(name, data.consume_type, data.message_model, data.consume_from_where)
            self.consumers[name] = group
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        before = group.members.get(client.session.id)
        joined = before is None
        if before is not None:
            self.stated_bytes -= cost_of_member(before.client_id)
        self.stated_bytes += cost_of_member(client.client_id)
        if before is None or before.client_id != client.client_id:
            group.sorted_ids = None
        group.members[client.session.id] = client
        self._expected.expect_no_more(name, client.client_id)
        versions = {topic: known.sub_version for topic, known in group.subscriptions.items()}
        changed = group.subscribe(data.subscription_data_set)
        # If members state different versions of a subscription, the newest one is kept.
        cost = cost_of(name, group.subscriptions.values())
        self.stated_bytes += cost - group.stated_bytes
        group.stated_bytes = cost
        if changed or joined:
            self.dirty = True
            self._changes.notify(group)
        elif any(known.sub_version != versions[topic] for topic, known in group.subscriptions.items()):
            self.dirty = True  # after a crash, pulls with the newer version would be rejected

    # Leaving

    def unregister(
        self, session: Session, client_id: str, producer_group: str | None, consumer_group: str | None
    ) -> None:
        """Remove a client from a group at its request."""
        if consumer_group:
            self._expected.expect_no_more(consumer_group, client_id)
        groups = self._groups_of.get(session.id)
        if groups is None:
            return
        if producer_group and producer_group in groups[0]:
            self._drop_producer(session.id, producer_group, groups[0].pop(producer_group))
        if consumer_group and consumer_group in groups[1]:
            del groups[1][consumer_group]
            self._drop_consumer(session.id, consumer_group)

    def session_closed(self, session: Session) -> None:
        """Remove the clients of a closed connection."""
        if self.frozen:
            return
        groups = self._groups_of.pop(session.id, None)
        if groups is None:
            return
        for group, cost in groups[0].items():
            self._drop_producer(session.id, group, cost)
        for group in groups[1]:
            self._drop_consumer(session.id, group)

    def expire(self, now_ms: int) -> list[Session]:
        """Remove members whose heartbeats are overdue. Returns their connections, which may be closed."""
        silent: dict[int, Session] = {}
        for members in (*self.producers.values(), *(group.members for group in self.consumers.values())):
            for client in members.values():
                if now_ms - client.updated_ms > EXPIRE_MS:
                    silent[client.session.id] = client.session
        for session in silent.values():
            self._expire_session(session, now_ms)
        missed = self._expected.end(now_ms)
        if missed is not None:
            self.dirty = True
            for name in missed:
                if name in self.consumers:
                    self._changes.notify(self.consumers[name])
        return list(silent.values())

    def _expire_session(self, session: Session, now_ms: int) -> None:
        producing, consuming = self._session_groups(session)
        for group in list(producing):
            if now_ms - self.producers[group][session.id].updated_ms > EXPIRE_MS:
                self._drop_producer(session.id, group, producing.pop(group))
        for group in list(consuming):
            if now_ms - self.consumers[group].members[session.id].updated_ms > EXPIRE_MS:
                del consuming[group]
                self._drop_consumer(session.id, group)

    def _drop_producer(self, session_id: int, group: str, cost: int) -> None:
        self.stated_bytes -= cost
        members = self.producers[group]
        client = members.pop(session_id)
        self.stated_bytes -= cost_of_member(client.client_id)
        if not members:
            del self.producers[group]
        self._forget_producing(client, group)

    def _forget_producing(self, client: Client, group: str) -> None:
        known = self._producing[client.client_id]
        del known[client.session.id, group]
        if not known:
            del self._producing[client.client_id]

    def _drop_consumer(self, session_id: int, name: str) -> None:
        group = self.consumers[name]
        client = group.members.pop(session_id)
        self.stated_bytes -= cost_of_member(client.client_id)
        group.sorted_ids = None
        self._expected.expect_no_more(name, client.client_id)
        self.dirty = True
        if group.members:
            self._changes.notify(group)
        else:
            self.stated_bytes -= group.stated_bytes
            del self.consumers[name]

    # Queries

    def group_names(self, now_ms: int) -> list[str]:
        """Return the groups with a member or an expected one."""
        return sorted({*self.consumers, *self._expected.names(now_ms)})

    def group(self, name: str, now_ms: int) -> ConsumerGroup | None:
        """Return the group as described by its members or, shortly after a start, by the last run."""
        group = self.consumers.get(name)
        return self._expected.group(name, now_ms) if group is None else group

    def subscription(self, name: str, topic: str, now_ms: int) -> SubscriptionData | None:
        """Return a group's subscription to `topic`. A returning member may not have stated it yet."""
        group = self.consumers.get(name)
        found = group.subscriptions.get(topic) if group is not None else None
        if found is None:
            expected = self._expected.group(name, now_ms)
            return None if expected is None else expected.subscriptions.get(topic)
        return found

    def member_ids(self, name: str, now_ms: int) -> list[str]:
        """Return the client ids of a group's members, including the expected ones."""
        group = self.consumers.get(name)
        connected: list[str] = []
        if group is not None:
            if group.sorted_ids is None:
                group.sorted_ids = sorted({client.client_id for client in group.members.values()})
            connected = group.sorted_ids
        expected = self._expected.ids(name, now_ms)
        return sorted({*connected, *expected}) if expected else list(connected)

    def consumes(self, name: str, topic: str) -> bool:
        """Return whether a group still subscribes to `topic`. A group that is not connected counts as subscribed."""
        group = self.consumers.get(name)
        return group is None or not group.subscriptions or topic in group.subscriptions

    def groups_of_topic(self, topic: str) -> list[str]:
        """Return the groups with a member that subscribes to `topic`."""
        return [group.name for group in self.consumers.values() if topic in group.subscriptions]

    def producer(self, client_id: str) -> Client | None:
        """Return the most recently active producer with this client id, None without one."""
        known = self._producing.get(client_id)
        return None if known is None else next(reversed(known.values()))

    def members(self, name: str) -> list[Client]:
        """Return the connected members of a group. Of several connections with one client id, the newest counts."""
        group = self.consumers.get(name)
        newest: dict[str, Client] = {}
        for client in group.members.values() if group is not None else ():
            known = newest.get(client.client_id)
            if known is None or known.session.id < client.session.id:
                newest[client.client_id] = client
        return list(newest.values())

    def member(self, name: str, client_id: str) -> Client | None:
        """Return the member with this client id by its newest connection, or None."""
        group = self.consumers.get(name)
        clients = group.members.values() if group is not None else ()
        return max(
            (client for client in clients if client.client_id == client_id),
            key=lambda client: client.session.id,
            default=None,
        )

    def notify_each(self, name: str, make: Callable[[Client], Command]) -> Iterator[Client]:
        """Send each current member of the group its own one-way request, one in each step of the iterator."""
        group = self.consumers.get(name)
        for client in list(group.members.values()) if group is not None else ():
            client.session.notify(make(client))
            yield client

    def notify_members(self, budget: int) -> None:
        """Notify up to `budget` members of large groups that their group changed. Call it repeatedly."""
        self._changes.notify_some(budget)

    # Across restarts

    def restore(self, stored: RememberedClients, now_ms: int) -> None:
        """Restore the clients of the last run for a limited time, if it ended recently."""
        self._expected.restore(stored, now_ms)

    def remember(self, now_ms: int) -> RememberedClients:
        """Return the contents for clients.json."""
        groups = {}
        for name in self.group_names(now_ms):
            group = self.group(name, now_ms)
            ids = self.member_ids(name, now_ms)
            if group is not None and ids:
                groups[name] = RememberedGroup(
                    group.consume_type,
                    group.message_model,
                    group.consume_from_where,
                    ids,
                    list(group.subscriptions.values()),
                )
        self.dirty = False
        self._remembered_at_ms = now_ms
        remembered = RememberedClients(1, now_ms, groups)
        self.on_remembered(remembered)
        return remembered

    def must_remember(self, now_ms: int) -> bool:
        """Return whether clients.json has to be written."""
        return self.dirty or bool(self.consumers and now_ms - self._remembered_at_ms >= REFRESH_MS)

    def _session_groups(self, session: Session) -> tuple[dict[str, int], dict[str, int]]:
        return self._groups_of.setdefault(session.id, ({}, {}))
