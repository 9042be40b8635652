"""Independence of tests from the disk of the machine, which may be nearly full: brokers would then reject messages and
delete segments.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from delaymq.store.disk.files import Files

SETTINGS: Final = {"diskSpaceWarningLevelRatio": "99", "diskSpaceCleanForciblyRatio": "99"}
"""Settings of brokers whose disk may be nearly full."""
ENVIRONMENT: Final = {
    "DELAYMQ_DISK_SPACE_WARNING_LEVEL_RATIO": "99",
    "DELAYMQ_DISK_SPACE_CLEAN_FORCIBLY_RATIO": "99",
}
"""The same settings for all brokers that this process starts, unless their configuration has others."""
FIELDS: Final = {"disk_space_warning_level_ratio": 99, "disk_space_clean_forcibly_ratio": 99}
"""The same settings as fields of BrokerConfig."""


def accept() -> None:
    """Let brokers that this process starts use a disk that is nearly full."""
    os.environ.update(ENVIRONMENT)


@contextmanager
def half_full() -> Iterator[None]:
    """Let stores in this process find half of the disk used, however full it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Files, "disk_used_ratio", lambda self, path: 0.5)
        yield
