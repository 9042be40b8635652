"""Adapters to external systems: the Kubernetes API, brokers' HTTP and remoting, and the Lease of the active replica.

Each module implements a port of `reconcile.ports`. Synchronous libraries run in separate threads, so they never block
the event loop; every call has a deadline, and every failure becomes an error of `reconcile.errors`.
"""
