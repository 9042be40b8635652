"""What holds for all tests of the broker."""

from hypothesis import settings

# A machine that others use as well may stand still in the middle of any example: that is no failure.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
