"""The NameServer's domain: which brokers live, which topics they have, and settings by key.

Here: registrations, routes, topic lists, write permission, expiry, key-value settings, one function for each request
code. Not here: sockets and waiting (server/). Invariant: nothing here looks at a clock that it was not given, and what
clients are told about a broker that is away is decided when they ask, never written into its data.
"""

from delaymq.namesrv.errors import NamesrvError
from delaymq.namesrv.nameserver import NameServer, NamesrvSession
from delaymq.namesrv.table import PROCESSORS

__all__ = ["PROCESSORS", "NameServer", "NamesrvError", "NamesrvSession"]
