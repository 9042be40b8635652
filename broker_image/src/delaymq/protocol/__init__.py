"""Sans-IO codec of the remoting protocol: frames, commands, headers and bodies (docs/formats/wire.md).

Sockets, asyncio and the table of open requests belong to transport/, the meaning of requests to broker/ and namesrv/.

Invariant: decoding bytes of a peer returns a value, or raises ProtocolError (the connection is closed) or RequestError
(the peer gets an error response), and no other exception. Memory and time for each input are bounded.
"""
