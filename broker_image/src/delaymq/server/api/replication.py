"""Handlers of /api/v1/replication and /api/v1/plain-slaves: state of a member, orders of an administrator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from delaymq.api_types.replication import (
    Detachable,
    DetachBody,
    EpochBody,
    FollowedMaster,
    GroupMember,
    Note,
    PlainSlaveRow,
    PlainSlaves,
    Register,
    Replication,
    SwitchoverBody,
)
from delaymq.config.replication_keys import ASYNC_MASTER, SYNC_MASTER
from delaymq.replication import Note as CoreNote
from delaymq.replication import NoteKind, Role
from delaymq.replication.events import Detach, Promote, SwitchOver
from delaymq.server.api.routing import Api, ApiError
from delaymq.server.replication.driver import OrderError
from delaymq.transport.addresses import host_and_port

if TYPE_CHECKING:
    from delaymq.replication.events import Order
    from delaymq.replication.model import ReplicaState
    from delaymq.server.broker_server import BrokerServer
    from delaymq.server.replication.replica import Replica

_ROLES: Final = {
    Role.MASTER: "Master",
    Role.FOLLOWER: "Replica",
    Role.STARTING: "Starting",
    Role.FAILED: "Failed",
}


async def replication(api: Api) -> Replication:
    """GET /api/v1/replication: return the state of this member and of its group."""
    return state(api.server, _replica(api.server))


async def switch_over(api: Api, body: SwitchoverBody) -> Replication:
    """POST /api/v1/replication/switchover: let a replica in sync take over."""
    return _order(api, SwitchOver(body.target, body.epoch))


async def promote(api: Api, body: EpochBody) -> Replication:
    """POST /api/v1/replication/promote: take over, although confirmed messages may be lost."""
    return _order(api, Promote(body.epoch))


async def prepare_detach(api: Api, body: EpochBody) -> Detachable:
    """POST /api/v1/replication/prepare-detach: record that this member is no candidate until it has caught up."""
    try:
        note = await _replica(api.server).driver.prepare_detach(body.epoch)
    except OrderError as error:
        raise ApiError(409, "refused", str(error)) from None
    except TimeoutError:
        raise ApiError(503, "busy", "the note could not be written in time: try again") from None
    return Detachable(note=_note(note))


async def detach(api: Api, body: DetachBody) -> Replication:
    """POST /api/v1/replication/detach: wait no longer for a member that has recorded a note."""
    note = CoreNote(NoteKind(body.note.kind), body.note.epoch, body.note.serial)
    return _order(api, Detach(body.member, body.epoch, note))


def state(server: BrokerServer, replica: Replica) -> Replication:
    """Return the state of a member."""
    member, config, problems = replica.driver.member, server.config, replica.problems()
    settings = replica.settings
    log, register_problem = member.log, replica.driver.register_problem
    in_sync, known = member.in_sync(), member.replicas()
    return Replication(
        cluster=config.broker_cluster_name,
        group=config.broker_name,
        member=replica.name,
        role=_ROLES[member.role],  # type: ignore[arg-type]
        epoch=member.epoch,
        master=replica.name if member.role is Role.MASTER else member.master,
        register=Register(reachable=not register_problem, problem=register_problem),
        mode=SYNC_MASTER if settings.waits_for_replicas else ASYNC_MASTER,
        acknowledge=settings.acknowledge.value,
        failover=settings.failover.value,
        min_in_sync=settings.min_in_sync,
        in_sync=tuple(sorted(in_sync)),
        begin=log.begin,
        end=log.end,
        flushed=min(log.flushed, log.end),
        confirmed=log.confirmed,
        note=None if log.note is None else _note(log.note),
        held=replica.is_held,
        problem="; ".join(problems),
        members=tuple(_member(name, replica, in_sync, known.get(name)) for name in sorted(replica.members)),
    )


def _member(name: str, replica: Replica, in_sync: frozenset[str], known: ReplicaState | None) -> GroupMember:
    host, port = replica.members[name]
    log = replica.driver.member.log
    own = name == replica.name
    return GroupMember(
        name=name,
        address=host_and_port(host, port),
        connected=own or replica.links.is_connected(name),
        in_sync=name in in_sync,
        acknowledged=known.acknowledged if known else None,
        behind_bytes=max(0, log.end - known.acknowledged) if known else None,
        behind_ms=known.behind_ms if known else None,
    )


def _replica(server: BrokerServer) -> Replica:
    if server.replica is None:
        raise ApiError(404, "not_replicated", "this broker has no replicas: haMembers is empty")
    return server.replica


def _order(api: Api, order: Order) -> Replication:
    replica = _replica(api.server)
    reason = replica.driver.order(order)
    if reason:
        raise ApiError(409, "refused", reason)
    return state(api.server, replica)


def _note(note: CoreNote) -> Note:
    return Note(kind=note.kind.value, epoch=note.epoch, serial=note.serial)


async def plain_slaves(api: Api) -> PlainSlaves:
    """Return the connected slaves, and the state of this broker if it is one."""
    store, server = api.broker.store, api.server
    connected = server.plain_slaves.status() if server.plain_slaves is not None else []
    master = None
    if server.plain_slave is not None:
        status = server.plain_slave.status
        master = FollowedMaster(
            address=server.plain_slave.address,
            problem=status.problem or None,
            end=status.master_end,
            behind_bytes=server.plain_slave.behind_bytes,
            tables_at_ms=status.tables_at_ms,
            tables_problem=status.tables_problem or None,
        )
    return PlainSlaves(
        as_of_ms=api.broker.now_ms(),
        begin=store.min_offset,
        end=store.end_offset,
        confirmed=store.confirmed_offset,
        slaves=[
            PlainSlaveRow(
                address=each.address,
                connected_ms=int(each.connected_s * 1_000),
                acknowledged=each.acknowledged,
                sent=each.sent,
                behind_bytes=max(store.confirmed_offset - each.acknowledged, 0),
            )
            for each in connected
        ],
        master=master,
    )
