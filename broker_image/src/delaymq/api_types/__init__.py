"""JSON types of requests and responses of /api/v1, shared by server, command line and operator.

Invariant: only msgspec is imported, so that each of them can decode a response. Brokers send every member, unless a
type sets `omit_defaults`; defaults are for readers of responses from older brokers. Readers ignore unknown members.
"""
