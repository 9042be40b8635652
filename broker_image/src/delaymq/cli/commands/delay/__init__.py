"""`delaymq delay`: pending deliveries of a broker, over its HTTP interface.

Invariant: nothing here loads the client or an event loop.
"""
