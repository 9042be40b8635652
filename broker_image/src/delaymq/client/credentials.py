"""An account that signs a client's requests, for brokers with access control (RocketMQ: AclClientRPCHook)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from delaymq.protocol.command import Command


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key and its secret, as the broker's plain_acl.yml has them. The secret is never sent, or shown."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False, kw_only=True)
    """Sent and signed with each request, where somebody before the broker asks for one."""

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key"):
            if not getattr(self, name).strip():
                raise ValueError(f"{name} is empty: write it as the broker's plain_acl.yml has it")

    def signer(self) -> Callable[[Command], None]:
        """Signs a request in place."""
        from delaymq.protocol.signatures import Signer  # who does not sign does not load what it takes

        signer = Signer(self.secret_key)

        def sign(command: Command) -> None:
            signer.sign(command, self.access_key, self.security_token)

        return sign
