"""Error of profiles."""

from harness.errors import HarnessError


class ProfileError(HarnessError):
    """A row cannot be profiled, or its profile cannot be read."""
