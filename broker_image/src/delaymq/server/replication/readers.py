"""Registration of a replica with the NameServers, as a slave that consumers may read from."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from delaymq.server.registration import GroupClaim, Place, Registration

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker

CHECK_S: Final = 1.0
LEAVE_AFTER_S: Final = 10.0
"""Time out of sync after which a replica unregisters. Meanwhile, it directs consumers to the master."""

_logger = logging.getLogger(__name__)


class ReplicaRegistration:
    """Registers a replica while it responds to pulls. Call `start`, then `stop`; `leave` when it becomes the master."""

    def __init__(self, broker: Broker, place: Callable[[], Place], claim: Callable[[], GroupClaim]) -> None:
        self._broker = broker
        self._place = place
        self._claim = claim
        self._registration: Registration | None = None
        self._registered_at: Place | None = None
        self._current_at = 0.0
        """Loop time at which the replica was current last."""
        self._task: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Register as soon as the replica is in sync."""
        if self._broker.config.name_servers:
            self._task = asyncio.create_task(self._run(), name="register replica")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            await self.check()

    async def check(self) -> None:
        """Register or unregister, if necessary."""
        broker, now = self._broker, asyncio.get_running_loop().time()
        place = self._place()
        is_wanted = broker.config.slave_read_enable and place.broker_id > 0
        if is_wanted and broker.readers.is_current():
            self._current_at = now
        if self._registration is not None and (
            not is_wanted or place != self._registered_at or now - self._current_at >= LEAVE_AFTER_S
        ):
            _logger.info("unregistering this replica, which consumers should not read from now")
            await self._unregister()
        if self._registration is None and is_wanted and self._current_at == now:
            _logger.info("registering this replica as broker %d at %s", *place)
            self._registered_at = place
            self._registration = Registration(broker, broker.config.name_servers, place)
            self._registration.group = self._claim()
            self._registration.start()

    async def _unregister(self) -> None:
        registration, self._registration = self._registration, None
        if registration is not None:
            await registration.unregister()
            await registration.stop()

    def leave(self) -> None:
        """End the registration of a replica that becomes the master, whose own registration replaces it."""
        if self._task is not None:
            self._task.cancel()
        registration = self._registration
        if registration is None:
            return
        registration.withdraw()
        if self._registered_at is not None and self._registered_at.address == self._broker.address:
            # The NameServer moves the address to the id of the master. A request to remove it could arrive later.
            self._registration = None
            self._leaving = asyncio.create_task(registration.stop())
        else:
            self._leaving = asyncio.create_task(self._unregister())

    async def stop(self) -> None:
        """Close the connections, whose end unregisters the replica."""
        tasks = [task for task in (self._task, self._leaving) if task is not None]
        if self._task is not None:
            self._task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        registration, self._registration = self._registration, None
        if registration is not None:
            await registration.stop()
