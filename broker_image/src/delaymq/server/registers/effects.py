"""Operations of a replication member, performed on a register."""

from __future__ import annotations

from typing import TypeAlias

from delaymq.replication.effects import ReadRegister, WriteRegister
from delaymq.replication.events import RegisterConflict, RegisterFailed, RegisterRead, RegisterWritten
from delaymq.server.registers.register import Conflict, Register, RegisterError, Unknown, Written

RegisterEvent: TypeAlias = RegisterRead | RegisterWritten | RegisterConflict | RegisterFailed


async def perform(
    register: Register, effect: ReadRegister | WriteRegister, timeout_s: float
) -> tuple[RegisterEvent, str]:
    """Return the event for the member, and the reason if it is RegisterFailed, for the log."""
    request = effect.request
    if isinstance(effect, ReadRegister):
        try:
            content = await register.read(timeout_s)
        except RegisterError as error:
            return RegisterFailed(request), str(error)
        return RegisterRead(request, content.version, content.record), ""
    match await register.write(effect.record, effect.expected, timeout_s):
        case Written(version):
            return RegisterWritten(request, version), ""
        case Conflict():
            return RegisterConflict(request), ""
        case Unknown(reason):
            return RegisterFailed(request), reason
