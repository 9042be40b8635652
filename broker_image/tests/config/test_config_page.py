"""The tables of docs/operations/configuration.md agree with the code."""

from pathlib import Path

from delaymq.config import BrokerConfig, NamesrvConfig, keys_of
from delaymq.config.known_keys import REFUSED, WITHOUT_MEANING
from delaymq.config.page import with_tables

PAGE = Path(__file__).parents[3] / "docs" / "operations" / "configuration.md"


def test_settings_tables_are_generated_from_the_code() -> None:
    assert PAGE.read_text() == with_tables(PAGE.read_text()), "run `make docs`"


def test_settings_page_names_every_key() -> None:
    text = PAGE.read_text()
    known = [*keys_of(BrokerConfig), *keys_of(NamesrvConfig), *REFUSED, *WITHOUT_MEANING]
    assert [key for key in known if f"`{key}`" not in text] == []
