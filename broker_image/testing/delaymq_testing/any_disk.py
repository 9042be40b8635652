"""Independence of tests from the disk of the machine, which may be nearly full: brokers would then reject messages and
delete segments.
"""

from collections.abc import Iterator
from typing import Final

import pytest
from delaymq.config.fields import wire_name
from delaymq.config.layers import variable_of
from delaymq.store.disk.files import Files

FIELDS: Final = {"disk_space_warning_level_ratio": 99, "disk_space_clean_forcibly_ratio": 99}
"""Fields of BrokerConfig for brokers whose disk may be nearly full."""
SETTINGS: Final = {wire_name(name): str(value) for name, value in FIELDS.items()}
"""The same as keys of a configuration file."""
ENVIRONMENT: Final = {variable_of(name): str(value) for name, value in FIELDS.items()}
"""The same as environment variables."""


@pytest.fixture(autouse=True, scope="session")
def any_disk() -> Iterator[None]:
    """Let brokers that this process starts use a disk that is nearly full, and stores in it find half of it used."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.setattr(Files, "disk_used_ratio", lambda self, path: 0.5)
        yield
