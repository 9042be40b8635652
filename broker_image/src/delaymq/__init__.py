"""DelayMQ: a message broker for messages that must arrive later.

Layers, each importing only those to its right:
`cli → server → broker → {schedule | store | protocol} → message`; `client → transport → protocol → message`.
"""

__version__ = "0.1.0"
