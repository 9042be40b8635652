"""DelayMQ, a message broker specialised in delayed messages.

Layers, each of which imports only those to its right: `cli → server → broker → {schedule | store | protocol} →
message`; `client → transport → protocol → message`.
"""

__version__ = "0.1.0"
