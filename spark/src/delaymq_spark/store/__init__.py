"""Read-only access to a store in a folder or served by a broker: address, segments, positions.

Requires no Spark. `segments` opens either kind; `remote` reads a broker's store by means of `broker_client`.
"""
