"""Audit of a NameServer's requests."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from delaymq.namesrv.guard import BROKERS_CODES
from delaymq.protocol.command import Command, Response
from delaymq.protocol.credential_fields import ACCESS_KEY
from delaymq.server.audit.auditing import Peer, attempt_of, audited, result_of
from delaymq.server.audit.requests import NAMESRV_CHANGES

if TYPE_CHECKING:
    from delaymq.audit.log import Attempt, AuditLog
    from delaymq.namesrv import NameServer


class NamesrvAuditing:
    """Audit of a NameServer's requests."""

    def __init__(self, namesrv: NameServer, log: AuditLog) -> None:
        self._namesrv = namesrv
        self.log = log

    def audited(self, session: Peer, command: Command) -> Command:
        """Return a request to handle instead of `command`, whose response is recorded if it is a change."""
        change = NAMESRV_CHANGES.get(command.code)
        if change is None or not self.log.is_on:
            return command
        account = command.fields.get(ACCESS_KEY, "") if self._namesrv.rules is not None else ""
        attempt = attempt_of(session, command, change, account)
        before = self._owner(command)
        return audited(command, partial(self._answered, attempt, command, before))

    def _answered(self, attempt: Attempt, command: Command, before: object, response: Response) -> None:
        result = result_of(response.code)
        if result == "done":
            attempt.verified = bool(attempt.account)
            if command.code in BROKERS_CODES and self._owner(command) == before:
                return  # the broker repeats its registration, or was not registered
        self.log.record(attempt, result, response.code, response.remark)

    def _owner(self, command: Command) -> tuple[str, bool] | None:
        """Return address and signature of the broker with the name and id in a request; None without one."""
        if command.code not in BROKERS_CODES:
            return None
        fields = command.fields
        try:
            place = fields.get("brokerName", ""), int(fields.get("brokerId", "0"))
        except ValueError:
            return None
        group = self._namesrv.routes.groups.get(place[0])
        address = None if group is None else group.addresses.get(place[1])
        return None if address is None else (address, self._namesrv.ownership.is_signed(place))
