"""The remoting protocol, sans-IO: frames, commands, headers and bodies as bytes in and values out.

Here: everything that docs/formats/wire.md describes. Not here: sockets, asyncio, the table of open requests
(transport/) and what a request means (broker/, namesrv/).

Invariant: bytes of a peer end in a value, in a ProtocolError (the connection is closed) or in a RequestError (the
peer is answered); no other exception leaves this package, and each input costs memory and time within stated limits.
"""
