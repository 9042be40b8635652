"""Inputs of manifests other than the resource itself."""

from __future__ import annotations

from dataclasses import dataclass

from delaymq.message.levels import DEFAULT_LEVELS

from delaymq_operator.api.names import DEFAULT_CLUSTER_DOMAIN


@dataclass(frozen=True, kw_only=True)
class DelayTable:
    """Desired delay levels of the brokers."""

    levels: str = DEFAULT_LEVELS
    """The table in the format of messageDelayLevel."""
    overflow: str = "clamp"


@dataclass(frozen=True, kw_only=True)
class Context:
    """Inputs common to all groups of a Broker."""

    image: str
    token: str
    """Token of the brokers' HTTP interface."""
    delay: DelayTable = DelayTable()
    cluster_domain: str = DEFAULT_CLUSTER_DOMAIN
    """Suffix after the namespace in DNS names."""
    operator_namespace: str = ""
    """Namespace of the operator; empty: it runs outside the cluster."""
    operator_labels: tuple[tuple[str, str], ...] = ()
    replicates: bool = False
    """Whether a group has, or had, replicas."""


@dataclass(frozen=True, kw_only=True)
class GroupContext:
    """Inputs of a single group."""

    group: int
    advertised_address: str
    """IP address that clients connect to."""
    storage_size: str
    admin_needs_tls: bool = False
    """Whether access control is newly configured, so that administrative requests require TLS."""
    members: int = 0
    """Number of brokers of the group; 0: it was never replicated."""
