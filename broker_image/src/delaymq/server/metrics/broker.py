"""Families of the broker as a whole: what comes in and goes out, the store, the process."""

from collections.abc import Iterator

from prometheus_client.core import HistogramMetricFamily, Metric

from delaymq.protocol.codes import ResponseCode
from delaymq.server.metrics import process_facts
from delaymq.server.metrics.families import counter, counters, cumulative, gauge, gauges
from delaymq.server.metrics.gather import Gathered
from delaymq.server.requests.flushing import FLUSH_BUCKETS_S
from delaymq.server.tls.server_tls import ServerTls


def families(gathered: Gathered) -> Iterator[Metric]:
    """One after the other."""
    yield gauges("delaymq_build_info", "1; the version is the label.", "version", {gathered.version: 1})
    yield from _traffic(gathered)
    yield from _store(gathered)
    yield from _process(gathered)


def _traffic(gathered: Gathered) -> Iterator[Metric]:
    stats = gathered.server.broker.stats
    yield counter("delaymq_messages_sent", "Messages that producers sent and that were stored.", stats.sends)
    yield counter("delaymq_messages_sent_back", "Messages that consumers sent back.", stats.sent_back)
    refused = {_reason(code): float(count) for code, count in dict(stats.refused).items()}
    yield counters("delaymq_sends_refused", "Sends that were refused.", "reason", refused)
    server = gathered.server
    early = {**server.flow.refused, "connections": server.sessions.refused, "memory": server.buffers.disconnected}
    text = "Requests refused before they were handled, and connections cut off, to keep the broker quick for others."
    yield counters("delaymq_requests_refused", text, "reason", early)
    yield counter("delaymq_stored_bytes", "Bytes of messages that were stored.", stats.put_bytes)
    yield counter("delaymq_messages_pulled", "Messages handed to consumers.", stats.transferred)
    yield counter("delaymq_pulled_bytes", "Bytes of messages handed to consumers.", stats.get_bytes)
    offsets = server.broker.offsets
    yield counter("delaymq_commits_ignored", "Consumer offsets that were not kept.", offsets.ignored)
    yield gauge("delaymq_consumer_offsets", "Consumer offsets that are kept.", offsets.entries)
    text = "1 while no consumer is served: the consumer offsets cannot be read."
    yield gauge("delaymq_consumer_offsets_unreadable", text, bool(offsets.unreadable))
    pulls = {"found": float(stats.get_found), "missed": float(stats.get_miss)}
    yield counters("delaymq_pulls", "Pulls that found messages, and that did not.", "result", pulls)


def _reason(code: int) -> str:
    try:
        return ResponseCode(code).name.lower()
    except ValueError:
        return str(code)


def _store(gathered: Gathered) -> Iterator[Metric]:
    server, store = gathered.server, gathered.server.broker.store
    yield gauges("delaymq_store_pinned_bytes", "Log bytes kept from deletion.", "holder", gathered.pins)
    times = server.flushing.times
    flush = HistogramMetricFamily("delaymq_flush_seconds", "How long syncs of the log took.")
    flush.add_metric([], cumulative(FLUSH_BUCKETS_S, list(times.counts)), times.sum_s)
    yield flush
    yield counter("delaymq_flush_failures", "Syncs of the log that failed.", server.flushing.failures)
    ends = {"min": store.min_offset, "end": store.end_offset, "flushed": store.flushed_offset}
    yield gauges("delaymq_log_offset_bytes", "Offsets of the log.", "which", ends)
    corrections: dict[str, float] = {}
    for correction in store.recovery.corrections:
        corrections[correction.what] = corrections.get(correction.what, 0) + 1
    yield counters("delaymq_store_corrected", "What the last start put right in files.", "what", corrections)
    yield gauge(
        "delaymq_disk_size_bytes",
        "Size of the store's disk: used and free space, without blocks reserved for root.",
        gathered.disk_total_bytes,
    )
    yield gauge("delaymq_disk_free_bytes", "What is free on the store's disk.", gathered.disk_free_bytes)
    refuses = store.disk_state().writes_refused
    yield gauge("delaymq_disk_writes_refused", "1 while nothing is stored: the disk is full.", refuses)


def _process(gathered: Gathered) -> Iterator[Metric]:
    server = gathered.server
    yield gauge("delaymq_event_loop_lag_seconds", "Longest lag of the last 10 s.", server.background.lag_s)
    yield gauge("delaymq_event_loop_tasks", "Tasks of the event loop, the one that asks among them.", gathered.tasks)
    yield gauge("delaymq_connections", "Open connections of clients.", len(server.sessions))
    yield gauge("delaymq_http_connections", "Open connections of HTTP.", server.http_connections)
    yield gauge("delaymq_sends_waiting", "Requests that wait for the disk.", server.flushing.waiting)
    buffered = {"received": server.buffers.received_bytes, "unsent": server.buffers.unsent_bytes}
    text = "Bytes of half-received requests, and of answers that slow peers have not taken."
    yield gauges("delaymq_buffered_bytes", text, "which", buffered)
    yield from _tls(server.tls)
    yield gauge("delaymq_held_pulls", "Pulls that wait for messages.", len(server.held_pulls))
    yield gauge("delaymq_ready", "1 when /readyz answers 200.", 0 if server.not_ready() else 1)
    # Names that all Prometheus clients use, for dashboards that know them.
    yield counter("process_cpu_seconds", "Processor time.", process_facts.processor_seconds())
    started_s = server.broker.stats.boot_ms / 1000
    yield gauge("process_start_time_seconds", "When the broker started.", started_s)
    memory = gathered.memory
    yield gauge("process_resident_memory_bytes", "Memory, pages of files included.", memory and memory.resident)
    text = "Memory without pages of files, which the system takes back when it wants them."
    yield gauge("delaymq_anonymous_memory_bytes", text, memory and memory.anonymous)
    yield gauge("process_open_fds", "Open files and sockets.", gathered.descriptors)


def _tls(tls: ServerTls) -> Iterator[Metric]:
    text = "When the certificate that clients get ends."
    yield gauge("delaymq_tls_certificate_expiry_timestamp_seconds", text, tls.ends_at_s)
    reloads = {"done": float(tls.reloads), "failed": float(tls.failed_reloads)}
    yield counters("delaymq_tls_certificate_reloads", "Changed certificates that were read.", "result", reloads)
    accepting = tls.accepting
    handshakes = {"done": 0.0, "failed": 0.0, "plain_refused": 0.0}
    if accepting is not None:
        handshakes = {
            "done": float(accepting.done),
            "failed": float(accepting.failed),
            "plain_refused": float(accepting.plain_refused),
        }
    yield counters("delaymq_tls_handshakes", "TLS clients, and plain ones where TLS is a must.", "result", handshakes)
    open_connections = 0 if accepting is None else accepting.open_connections
    yield gauge("delaymq_tls_connections", "Open connections of clients with TLS.", open_connections)
