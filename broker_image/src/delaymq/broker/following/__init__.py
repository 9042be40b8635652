"""The broker as a replica: it follows the log of another broker without acting, and can take over from it.

This package switches the other parts of the broker between both roles. How bytes arrive is the store's and the server's
business. Invariant: while a broker follows, its state is that of a start on the same log.
"""
