"""State of a member of a replicated group at one moment, for its metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from delaymq.server.replication.replica import Replica


@dataclass(frozen=True)
class ReplicationFacts:
    """State of a member; by name of another member, what concerns it."""

    epoch: int = 0
    is_master: bool = False
    is_ready: bool = False
    in_sync: int = 0
    unconfirmed_bytes: int = 0
    is_register_reachable: bool = False
    behind_bytes: dict[str, float] = field(default_factory=dict)
    behind_s: dict[str, float] = field(default_factory=dict)
    received_bytes: dict[str, float] = field(default_factory=dict)
    sent_bytes: dict[str, float] = field(default_factory=dict)
    dropped: dict[str, float] = field(default_factory=dict)


def facts(replica: Replica) -> ReplicationFacts:
    """Return the state of a member, on the loop's thread."""
    member, driver, links = replica.driver.member, replica.driver, replica.links
    log, replicas = member.log, member.replicas()
    counts = {name: links.counts(name) for name in links.others}
    return ReplicationFacts(
        epoch=member.epoch,
        is_master=replica.is_master,
        is_ready=not replica.problems(),
        in_sync=len(member.in_sync()),
        unconfirmed_bytes=max(0, log.end - log.confirmed),
        is_register_reachable=not driver.register_problem,
        behind_bytes={name: max(0, log.end - each.acknowledged) for name, each in replicas.items()},
        behind_s={name: each.behind_ms / 1_000 for name, each in replicas.items()},
        received_bytes={name: each.received_bytes for name, each in counts.items()},
        sent_bytes={name: each.sent_bytes for name, each in counts.items()},
        dropped={name: each.dropped_messages for name, each in counts.items()},
    )
