"""An account that signs a client's requests, for brokers with access control (RocketMQ: AclClientRPCHook)."""

from __future__ import annotations

from dataclasses import dataclass, field

from delaymq.transport import RemotingConnection


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key and its secret, as the broker's plain_acl.yml has them. The secret is never sent, or shown."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False, kw_only=True)
    """Sent and signed with each request, where somebody before the broker asks for one."""
    rocketmq_signature: bool = field(default=True, kw_only=True)
    """Whether requests to servers that give no challenge have RocketMQ's signature. False: they have none, so that no
    server, whatever it says, gets a signature that counts elsewhere."""

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key"):
            if not getattr(self, name).strip():
                raise ValueError(f"{name} is empty: use the value in the broker's plain_acl.yml")

    async def sign_requests(self, connection: RemotingConnection, timeout_ms: int) -> str | None:
        """Has the requests of a new connection signed; the server's name, None where there is no challenge.

        TransportError when the connection ends.
        """
        from delaymq.transport.signing import sign_requests  # who does not sign does not load what it takes

        return await sign_requests(
            connection,
            self.access_key,
            self.secret_key,
            self.security_token,
            rocketmq=self.rocketmq_signature,
            timeout_ms=timeout_ms,
        )
