"""The NameServer's domain: live brokers, their topics, and key-value configuration.

Here: registrations, routes, topic lists, write permissions, expiry, key-value configuration, and one function per
request code. Not here: sockets and timers (server/). Invariant: clocks are injected, and the routes of a disconnected
broker are adjusted in responses, never in its data.
"""

from delaymq.namesrv.errors import NamesrvError
from delaymq.namesrv.nameserver import NameServer
from delaymq.namesrv.opening import open_name_server
from delaymq.namesrv.session import NamesrvSession
from delaymq.namesrv.table import PROCESSORS

__all__ = ["PROCESSORS", "NameServer", "NamesrvError", "NamesrvSession", "open_name_server"]
