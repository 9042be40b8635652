"""Error of an invalid spec."""


class SpecError(ValueError):
    """An invalid spec; the message names the field and states what to write, without a full stop."""
