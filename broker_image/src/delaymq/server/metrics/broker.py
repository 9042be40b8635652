"""Metric families of the broker: traffic, store and process."""

from collections.abc import Iterator

from prometheus_client.core import HistogramMetricFamily, Metric

from delaymq import kernels
from delaymq.protocol.codes import ResponseCode
from delaymq.server.metrics import process_facts
from delaymq.server.metrics.families import counter, counters, cumulative, gauge, gauges
from delaymq.server.metrics.gather import Gathered
from delaymq.server.requests.flushing import FLUSH_BUCKETS_S
from delaymq.server.tls.server_tls import ServerTls


def families(gathered: Gathered) -> Iterator[Metric]:
    """Yield the families."""
    yield gauges(
        "delaymq_build_info", "Always 1; the label is the version of the broker.", "version", {gathered.version: 1}
    )
    text = "1 if the broker uses the compiled kernels of delaymq-kernels, 0 if it does not."
    yield gauge("delaymq_kernels_compiled", text, kernels.IS_COMPILED)
    yield from _traffic(gathered)
    yield from _store(gathered)
    yield from _process(gathered)


def _traffic(gathered: Gathered) -> Iterator[Metric]:
    stats = gathered.server.broker.stats
    yield counter("delaymq_messages_sent", "Messages of producers that were stored.", stats.sends)
    yield counter("delaymq_messages_sent_back", "Messages that consumers sent back.", stats.sent_back)
    refused = {_reason(code): float(count) for code, count in dict(stats.refused).items()}
    yield counters("delaymq_sends_refused", "Sends that were rejected.", "reason", refused)
    server = gathered.server
    early = {**server.flow.refused, "connections": server.sessions.refused, "memory": server.buffers.disconnected}
    text = "Requests rejected before processing, and connections closed, to protect the broker from overload."
    yield counters("delaymq_requests_refused", text, "reason", early)
    yield counter("delaymq_stored_bytes", "Bytes of stored messages.", stats.put_bytes)
    yield counter("delaymq_messages_pulled", "Messages returned to consumers.", stats.transferred)
    yield counter("delaymq_pulled_bytes", "Bytes of messages returned to consumers.", stats.get_bytes)
    offsets = server.broker.offsets
    yield counter("delaymq_commits_ignored", "Commits of consumer offsets that were ignored.", offsets.ignored)
    yield gauge("delaymq_consumer_offsets", "Stored consumer offsets.", offsets.entries)
    text = "1 while consumers are not served because the consumer offsets are unreadable."
    yield gauge("delaymq_consumer_offsets_unreadable", text, bool(offsets.unreadable))
    pulls = {"found": float(stats.get_found), "missed": float(stats.get_miss)}
    yield counters("delaymq_pulls", "Pulls with and without messages.", "result", pulls)


def _reason(code: int) -> str:
    try:
        return ResponseCode(code).name.lower()
    except ValueError:
        return str(code)


def _store(gathered: Gathered) -> Iterator[Metric]:
    server, store = gathered.server, gathered.server.broker.store
    yield gauges("delaymq_store_pinned_bytes", "Log bytes that a pin protects from deletion.", "holder", gathered.pins)
    times = server.flushing.times
    flush = HistogramMetricFamily("delaymq_flush_seconds", "Duration of syncs of the log.")
    flush.add_metric([], cumulative(FLUSH_BUCKETS_S, list(times.counts)), times.sum_s)
    yield flush
    yield counter("delaymq_flush_failures", "Syncs of the log that failed.", server.flushing.failures)
    ends = {"min": store.min_offset, "end": store.end_offset, "flushed": store.flushed_offset}
    yield gauges("delaymq_log_offset_bytes", "Offsets of the log.", "which", ends)
    corrections: dict[str, float] = {}
    for correction in store.recovery.corrections:
        corrections[correction.what] = corrections.get(correction.what, 0) + 1
    yield counters("delaymq_store_corrected", "Corrections of files by the last recovery.", "what", corrections)
    yield gauge(
        "delaymq_disk_size_bytes",
        "Size of the store's disk: used and free space, without blocks reserved for root.",
        gathered.disk_total_bytes,
    )
    yield gauge("delaymq_disk_free_bytes", "Free space on the store's disk.", gathered.disk_free_bytes)
    refuses = store.disk_state().writes_refused
    yield gauge("delaymq_disk_writes_refused", "1 while messages are rejected because the disk is full.", refuses)


def _process(gathered: Gathered) -> Iterator[Metric]:
    server = gathered.server
    yield gauge("delaymq_event_loop_lag_seconds", "Maximum lag of the last 10 s.", server.background.lag_s)
    yield gauge("delaymq_event_loop_tasks", "Tasks of the event loop, including the scrape's.", gathered.tasks)
    yield gauge("delaymq_connections", "Open client connections.", len(server.sessions))
    yield gauge("delaymq_http_connections", "Open HTTP connections.", server.http_connections)
    yield gauge("delaymq_sends_waiting", "Requests that wait for the disk.", server.flushing.waiting)
    buffered = {"received": server.buffers.received_bytes, "unsent": server.buffers.unsent_bytes}
    text = "Bytes of partially received requests and of unsent responses."
    yield gauges("delaymq_buffered_bytes", text, "which", buffered)
    yield from _tls(server.tls)
    yield gauge("delaymq_held_pulls", "Held pulls.", len(server.held_pulls))
    yield gauge("delaymq_ready", "1 if /readyz returns 200.", 0 if server.not_ready() else 1)
    # Standard names of Prometheus clients, for existing dashboards.
    yield counter("process_cpu_seconds", "CPU time.", process_facts.processor_seconds())
    started_s = server.broker.stats.boot_ms / 1000
    yield gauge("process_start_time_seconds", "Start time of the broker.", started_s)
    memory = gathered.memory
    yield gauge("process_resident_memory_bytes", "Resident memory, including file pages.", memory and memory.resident)
    text = "Resident memory without file pages, which the system can reclaim."
    yield gauge("delaymq_anonymous_memory_bytes", text, memory and memory.anonymous)
    yield gauge("process_open_fds", "Open files and sockets.", gathered.descriptors)


def _tls(tls: ServerTls) -> Iterator[Metric]:
    text = "Expiry time of the server certificate."
    yield gauge("delaymq_tls_certificate_expiry_timestamp_seconds", text, tls.ends_at_s)
    reloads = {"done": float(tls.reloads), "failed": float(tls.failed_reloads)}
    yield counters("delaymq_tls_certificate_reloads", "Reloads of changed certificates.", "result", reloads)
    yield counters(
        "delaymq_tls_handshakes",
        "TLS handshakes, and plaintext connections rejected because TLS is required.",
        "result",
        {result: float(count) for result, count in tls.handshakes().items()},
    )
    open_connections = 0 if tls.accepting is None else tls.accepting.open_connections
    yield gauge("delaymq_tls_connections", "Open client connections with TLS.", open_connections)
