"""Metric families of a member of a replicated group; none without replicas."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from delaymq.server.metrics.families import counters, gauge, gauges
from delaymq.server.metrics.replication_facts import ReplicationFacts


def families(known: ReplicationFacts | None) -> Iterator[Metric]:
    """Yield the families."""
    if known is None:
        return
    yield gauge("delaymq_replication_epoch", "Newest epoch of the group that this member knows.", known.epoch)
    yield gauge("delaymq_replication_master", "1 if this member is the master.", known.is_master)
    yield gauge("delaymq_replication_ready", "1 if this member is the master or in sync with it.", known.is_ready)
    text = "1 if the last request to the register of the group succeeded."
    yield gauge("delaymq_replication_register_reachable", text, known.is_register_reachable)
    text = "Bytes of the log that are not confirmed by all members in sync, as far as this member knows."
    yield gauge("delaymq_replication_unconfirmed_bytes", text, known.unconfirmed_bytes)
    text = "Members in sync, including the master; reported by the master only."
    yield gauge("delaymq_replication_in_sync_members", text, known.in_sync)
    text = "Bytes of the log that a replica has not acknowledged; reported by the master only."
    yield gauges("delaymq_replica_behind_bytes", text, "member", known.behind_bytes)
    text = "Time since a replica is known to have had the whole log; reported by the master only."
    yield gauges("delaymq_replica_behind_seconds", text, "member", known.behind_s)
    text = "Bytes received from another member."
    yield counters("delaymq_replication_received_bytes", text, "member", known.received_bytes)
    text = "Bytes sent to another member."
    yield counters("delaymq_replication_sent_bytes", text, "member", known.sent_bytes)
    text = "Messages to another member that were dropped because it was not connected or too slow."
    yield counters("delaymq_replication_dropped_messages", text, "member", known.dropped)
