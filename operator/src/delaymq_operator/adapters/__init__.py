"""The outside world: the Kubernetes API, brokers' HTTP and remoting, the lease of the active replica.

Each module implements a port of `reconcile.ports`. Synchronous libraries run in threads of their own, so that the event
loop never waits for them; every call has a deadline, and every failure becomes an error of `reconcile.errors`.
"""
