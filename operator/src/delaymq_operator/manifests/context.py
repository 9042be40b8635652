"""Inputs of manifests beside the resource itself."""

from __future__ import annotations

from dataclasses import dataclass

from delaymq.message.levels import DEFAULT_LEVELS

from delaymq_operator.api.names import DEFAULT_CLUSTER_DOMAIN


@dataclass(frozen=True, kw_only=True)
class DelayTable:
    """The delay levels that the brokers shall have."""

    levels: str = DEFAULT_LEVELS
    """As messageDelayLevel."""
    overflow: str = "clamp"


@dataclass(frozen=True, kw_only=True)
class Context:
    """What is the same for all groups of a Broker."""

    image: str
    token: str
    """What brokers want to see in HTTP requests."""
    delay: DelayTable = DelayTable()
    cluster_domain: str = DEFAULT_CLUSTER_DOMAIN
    """What follows the namespace in DNS names."""
    operator_namespace: str = ""
    """Empty: the operator runs outside the cluster."""
    operator_labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class GroupContext:
    """What is a group's own."""

    group: int
    advertised_address: str
    """The IP that clients are told."""
    storage_size: str
    admin_needs_tls: bool = False
    """Whether access control is a new configuration, in which administrators' requests need TLS."""
