"""The tables of docs/operations/configuration.md are what the code says."""

from pathlib import Path

from delaymq.config import BrokerConfig, NamesrvConfig, keys_of
from delaymq.config.known_keys import REFUSED, WITHOUT_MEANING
from delaymq.config.page import with_tables

PAGE = Path(__file__).parents[3] / "docs" / "operations" / "configuration.md"


def test_the_tables_of_the_page_of_settings_are_made_of_the_code() -> None:
    assert PAGE.read_text() == with_tables(PAGE.read_text()), "run `make docs`"


def test_the_page_of_settings_names_every_key_that_is_known() -> None:
    text = PAGE.read_text()
    known = [*keys_of(BrokerConfig), *keys_of(NamesrvConfig), *REFUSED, *WITHOUT_MEANING]
    assert [key for key in known if f"`{key}`" not in text] == []
