"""Accounts that sign a client's requests, for brokers with access control (RocketMQ: AclClientRPCHook)."""

from __future__ import annotations

from dataclasses import dataclass, field

from delaymq.transport import RemotingConnection


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key and its secret key, as in the broker's plain_acl.yml. The secret key is never sent or shown."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False, kw_only=True)
    """Token sent and signed with each request, for proxies that require one."""
    rocketmq_signature: bool = field(default=True, kw_only=True)
    """Whether requests to servers without a challenge carry RocketMQ's signature. False: they carry none, so no
    server obtains a signature that is valid elsewhere.
    """

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key"):
            if not getattr(self, name).strip():
                raise ValueError(f"{name} is empty: use the value in the broker's plain_acl.yml")

    async def sign_requests(self, connection: RemotingConnection, timeout_ms: int) -> str | None:
        """Set up signing for a new connection; return the server's name, or None if it sends no challenge.

        TransportError if the connection ends.
        """
        from delaymq.transport.signing import sign_requests  # loaded only by clients that sign

        return await sign_requests(
            connection,
            self.access_key,
            self.secret_key,
            self.security_token,
            rocketmq=self.rocketmq_signature,
            timeout_ms=timeout_ms,
        )
