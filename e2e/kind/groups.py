"""What tests of groups with replicas share: their load, and the group 0 of the Broker `demo`."""

from kind import objects
from kind.space import Manifest, Space

RATE = 50
"""Messages per second."""
LEVELS = f"{objects.LEVEL_OF['1s']},{objects.LEVEL_OF['5s']}"
PODS = ("demo-broker-0-0", "demo-broker-0-1")
REGISTER = "demo-broker-0-register"
"""Lease that states the master."""


def group_of(space: Space) -> Manifest:
    """Return the group's part of the Broker's status."""
    found: Manifest = space.broker()["status"]["groups"][0]
    return found
