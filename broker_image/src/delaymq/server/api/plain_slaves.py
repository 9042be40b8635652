"""GET /api/v1/plain-slaves: replication over RocketMQ's HA protocol, as the master and as a slave."""

from delaymq.api_types.plain_slaves import FollowedMaster, PlainSlaveRow, PlainSlaves
from delaymq.server.api.routing import Api


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
