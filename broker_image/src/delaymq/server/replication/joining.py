"""A broker as a member of the group that its configuration states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delaymq.config.replication_keys import SYNC_MASTER
from delaymq.replication import Acknowledge, Failover, Settings
from delaymq.server.errors import ServerError
from delaymq.server.registers import RegisterError, open_endpoints, open_register
from delaymq.server.replication.replica import Membership
from delaymq.server.replication.secret import GroupSecret, SecretError

if TYPE_CHECKING:
    from delaymq.config import BrokerConfig
    from delaymq.server.registers import Register
    from delaymq.server.registers.endpoint_slices import EndpointSlices


def membership_of(config: BrokerConfig) -> Membership:
    """Return the membership that a configuration states. Raises ServerError if the secret is unusable."""
    try:
        secret = GroupSecret(config.ha_secret_file)
    except SecretError as error:
        raise ServerError(str(error)) from error
    settings = Settings(
        acknowledge=Acknowledge(config.replica_acknowledge),
        waits_for_replicas=config.broker_role == SYNC_MASTER,
        failover=Failover(config.replica_failover),
        min_in_sync=config.min_in_sync_replicas,
        replica_timeout_ms=config.ha_replica_timeout_ms,
        lease_ms=config.replica_lease_ms,
        register_timeout_ms=config.replica_register_timeout_ms,
    )
    return Membership(name=config.ha_member_name, members=config.members, secret=secret, settings=settings)


async def register_of(config: BrokerConfig) -> Register:
    """Return the register of the group. Raises ServerError."""
    lease_s = max(1, config.replica_lease_ms // 1_000)
    try:
        return await open_register(config, config.broker_cluster_name, config.broker_name, lease_s=lease_s)
    except RegisterError as error:
        raise ServerError(str(error)) from error


async def endpoints_of(config: BrokerConfig) -> EndpointSlices | None:
    """Return the EndpointSlices of the group; None without `replicaEndpoint`. Raises ServerError."""
    try:
        return await open_endpoints(config)
    except RegisterError as error:
        raise ServerError(str(error)) from error
