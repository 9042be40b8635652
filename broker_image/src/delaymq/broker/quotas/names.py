"""Names of quotas: their keys in rule files."""

from typing import Final

SEND_BYTES: Final = "sendBytesPerSecond"
SENDS: Final = "sendRequestsPerSecond"
PULL_BYTES: Final = "pullBytesPerSecond"
PULLS: Final = "pullRequestsPerSecond"
REQUESTS: Final = "requestsPerSecond"
LOOP: Final = "eventLoopPercent"
CONNECTIONS: Final = "connections"
HELD_PULLS: Final = "heldPulls"
CREATED_TOPICS: Final = "createdTopics"
"""Topics that an account creates by sending to them."""
CREATED_GROUPS: Final = "createdGroups"
"""Groups that an account creates by consuming with them. Their retry topics do not count."""
COUNTS: Final = (CONNECTIONS, HELD_PULLS, CREATED_TOPICS, CREATED_GROUPS)
"""Quotas of numbers, not of rates."""
