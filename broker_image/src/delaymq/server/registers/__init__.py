"""The register of a broker group: one record, replaced by compare-and-write, in etcd or in a Kubernetes Lease.

Here: the interface, its two adapters over HTTP, the format of the record, and the EndpointSlices in which a master on
Kubernetes publishes its address. Not here: what the record means
(replication/). Invariants: a write is sent at most once. A conflict is reported only if the register rejected the
write, or if it was not sent. Operations have deadlines, and the size of responses is limited (decision 68).
"""

from delaymq.server.registers.effects import perform
from delaymq.server.registers.opening import open_endpoints, open_register
from delaymq.server.registers.register import (
    Conflict,
    Content,
    Outcome,
    Register,
    RegisterError,
    Unknown,
    Written,
)

__all__ = [
    "Conflict",
    "Content",
    "Outcome",
    "Register",
    "RegisterError",
    "Unknown",
    "Written",
    "open_endpoints",
    "open_register",
    "perform",
]
