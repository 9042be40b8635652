"""GET /api/v1/totals: key figures in one cheap response, for polling every two seconds."""

import asyncio

from delaymq.api_types.totals import Disk, Pin, Totals
from delaymq.server.api.routing import Api
from delaymq.server.metrics import process_facts
from delaymq.store.disk.files import disk_space


async def totals(api: Api) -> Totals:
    """Return the key figures."""
    server, broker = api.server, api.broker
    store, delivery, stats = broker.store, broker.delivery, broker.stats
    # Not in the threads that read old messages, so that long searches do not delay monitoring.
    space, memory = await asyncio.to_thread(lambda: (disk_space(store.path), process_facts.memory()))
    pins = [Pin(holder=pin.holder, bytes=pin.pinned_bytes) for pin in store.pins.report()]
    not_ready = server.not_ready()
    return Totals(
        as_of_ms=broker.now_ms(),
        started_at_ms=stats.boot_ms,
        boot_id=server.boot_id,
        stored=stats.put_messages,
        stored_bytes=stats.put_bytes,
        delivered=stats.copies,
        pulled=stats.transferred,
        pending=delivery.pending_total(),
        next_due_ms=min(delivery.next_due_ms().values(), default=None),
        connections=len(server.sessions),
        held_pulls=len(server.held_pulls),
        event_loop_lag_ms=round(server.background.lag_s * 1000, 3),
        resident_bytes=memory.resident if memory is not None else None,
        disk=Disk(
            path=store.path,
            total_bytes=space.size_bytes,
            free_bytes=space.free_bytes,
            used_ratio=round(space.used_ratio, 4),
            log_bytes=store.end_offset - store.min_offset,
            pinned_bytes=max((pin.bytes for pin in pins), default=0),
            pinned_by=pins,
        ),
        ready=not not_ready,
        not_ready=not_ready,
    )
