"""`delaymq delay`: pending deliveries of a broker, over its HTTP API.

Invariant: nothing here loads the client or an event loop.
"""
