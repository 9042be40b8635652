"""Merging of the responses of several groups: metrics and totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from delaymq.api_types.totals import Pin, Totals

OWN_FAMILIES: Final = (
    ("delaymq_broker_up", "gauge", "Whether the broker's process runs and returns metrics."),
    ("delaymq_broker_restarts_total", "counter", "Number of times that the broker's process was started again."),
)
"""Name, type and meaning of the supervisor's own metrics, which have the label `broker`."""


def merged_metrics(texts: Mapping[str, bytes], restarts: Mapping[str, int]) -> bytes:
    """Return the metrics of the brokers in `texts`, in Prometheus' text format, with the label `broker`.

    `restarts` has all brokers, with the number of restarts of each.
    """
    heads: dict[str, tuple[str, list[str]]] = {}
    samples: dict[str, list[str]] = {}
    for broker, text in texts.items():
        label = f'broker="{_escaped(broker)}"'
        family = ""
        for line in text.decode(errors="replace").split("\n"):
            if line.startswith(("# HELP ", "# TYPE ")):
                family = line.split(" ", 3)[2]
                first, head = heads.setdefault(family, (broker, []))
                if first == broker:
                    head.append(line)
            elif line and not line.startswith("#"):
                samples.setdefault(family, []).append(_labelled(line, label))
    lines = []
    for family, (_, head) in heads.items():
        lines += [*head, *samples.get(family, ())]
    values = {broker: (int(broker in texts), count) for broker, count in restarts.items()}
    for number, (name, kind, about) in enumerate(OWN_FAMILIES):
        lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        lines += [f'{name}{{broker="{_escaped(broker)}"}} {each[number]}' for broker, each in values.items()]
    return ("\n".join(lines) + "\n").encode()


def _labelled(line: str, label: str) -> str:
    brace, blank = line.find("{"), line.find(" ")
    if 0 <= brace < blank:
        return f"{line[: brace + 1]}{label},{line[brace + 1 :]}"
    return f"{line[:blank]}{{{label}}}{line[blank:]}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def merged_totals(found: Mapping[str, Totals], missing: Sequence[str]) -> Totals:
    """Return the totals of all brokers in `found`, of which there is at least one; `missing` are not ready.

    Counts are summed. The disk is the fullest one; the lag is the longest, and the times are the earliest ones.
    """
    each = [*found.values()]
    disks = [one.disk for one in each]
    fullest = max(disks, key=lambda disk: disk.used_ratio)
    resident = [one.resident_bytes for one in each]
    not_ready = [f"{name}: {reason}" for name, one in found.items() for reason in one.not_ready] + [*missing]
    return Totals(
        as_of_ms=max(one.as_of_ms for one in each),
        started_at_ms=min(one.started_at_ms for one in each),
        boot_id="-".join(one.boot_id for one in each),
        stored=sum(one.stored for one in each),
        stored_bytes=sum(one.stored_bytes for one in each),
        delivered=sum(one.delivered for one in each),
        pulled=sum(one.pulled for one in each),
        pending=sum(one.pending for one in each),
        next_due_ms=min((one.next_due_ms for one in each if one.next_due_ms is not None), default=None),
        connections=sum(one.connections for one in each),
        held_pulls=sum(one.held_pulls for one in each),
        event_loop_lag_ms=max(one.event_loop_lag_ms for one in each),
        resident_bytes=None if None in resident else sum(one for one in resident if one is not None),
        disk=msgspec.structs.replace(
            fullest,
            log_bytes=sum(disk.log_bytes for disk in disks),
            pinned_bytes=sum(disk.pinned_bytes for disk in disks),
            pinned_by=[
                Pin(holder=f"{name}: {pin.holder}", bytes=pin.bytes)
                for name, one in found.items()
                for pin in one.disk.pinned_by
            ],
        ),
        ready=not not_ready,
        not_ready=not_ready,
    )
