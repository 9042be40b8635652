"""What this layer raises."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the text says which key, and what to write instead."""
