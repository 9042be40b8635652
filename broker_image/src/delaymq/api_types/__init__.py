"""The JSON of /api/v1, once: what brokers answer and are asked, for server, command line and operator.

Invariant: nothing but msgspec is imported, so that each of them can read an answer. Brokers send every member, unless
a form says `omit_defaults`; a default is what a reader takes where an older broker sends none. Readers leave unknown
members alone.
"""
