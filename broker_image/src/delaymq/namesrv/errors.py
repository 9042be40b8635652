"""What this layer raises; refusals to peers are RequestErrors (protocol.errors)."""


class NamesrvError(Exception):
    """A NameServer that cannot start; the text says what to do."""
