"""kopf's settings: it watches objects and removes finalizers; the operator does everything else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import kopf

from delaymq_operator.adapters.kinds import KINDS, WATCHED_KINDS, label_selector
from delaymq_operator.api.names import FINALIZER, GROUP
from delaymq_operator.handlers.storage import CarefulDiffBaseStorage, CarefulProgressStorage

WATCH_S: Final = 600
"""Time after which the API server ends a watch; the next watch continues from there."""
INACTIVE_S: Final = 90.0
"""Time without events after which a watch counts as dead, for example behind a firewall that dropped the connection:
a bookmark arrives every minute.
"""
EXIT_S: Final = 20.0
PAGE_OBJECTS: Final = 100


class Backoffs:
    """Backoffs of 1, 2, 4 … 30, 30 … s without end: after the last one of a finite list, kopf would end the process."""

    def __iter__(self) -> Iterator[float]:
        after_s = 1.0
        while True:
            yield after_s
            after_s = min(30.0, after_s * 2)


def configure(settings: kopf.OperatorSettings, *, request_timeout_s: float) -> None:
    """Set everything that differs from kopf's defaults."""
    # Namespaces and kinds are known at the start: no need to read all namespaces and CRDs of the cluster.
    settings.scanning.disabled = True
    # The lease decides who is active.
    settings.peering.standalone = True
    # The reconcilers emit all Events.
    settings.posting.enabled = False

    settings.watching.server_timeout = WATCH_S
    settings.watching.client_timeout = WATCH_S + INACTIVE_S
    settings.watching.inactivity_timeout = INACTIVE_S
    settings.watching.connect_timeout = 10.0
    settings.watching.reconnect_backoff = 1.0
    settings.watching.chunk_size = PAGE_OBJECTS
    for name in WATCHED_KINDS:
        selector = label_selector(name)
        if selector:
            kind = KINDS[name]
            settings.watching.label_selectors[kind.group, kind.plural] = selector

    settings.networking.request_timeout = request_timeout_s
    settings.networking.connect_timeout = 10.0
    settings.networking.error_backoffs = Backoffs()

    # kopf runs one task per object with events and ends it soon afterwards. The number of tasks is unlimited: objects
    # that wait for the removal of their finalizer would exhaust a limit and block the events of all other objects.
    settings.queueing.idle_timeout = 2.0
    settings.queueing.exit_timeout = 2.0
    settings.process.ultimate_exiting_timeout = EXIT_S

    settings.persistence.finalizer = FINALIZER
    settings.persistence.progress_storage = CarefulProgressStorage(prefix=GROUP, v1=False)
    settings.persistence.diffbase_storage = CarefulDiffBaseStorage(prefix=GROUP, v1=False)
