"""The error of a spec that cannot be parsed."""


class SpecError(ValueError):
    """A resource whose spec cannot be used; the text is a sentence that names the field and says what to write."""
