"""Headers of the handshake between the members of a replicated group (docs/formats/wire.md)."""

from delaymq.protocol.headers.base import Header
from delaymq.protocol.integers import Int32


class LinkReplicaRequestHeader(Header):
    """Request 30002."""

    cluster_name: str
    broker_name: str
    member: str
    peer: str
    process: str
    oldest_version: Int32
    newest_version: Int32
    nonce: str


class LinkReplicaResponseHeader(Header):
    """Response to 30002."""

    member: str
    process: str
    version: Int32
    nonce: str


class ProveReplicaRequestHeader(Header):
    """Request 30003."""

    proof: str


class ProveReplicaResponseHeader(Header):
    """Response to 30003."""

    proof: str
