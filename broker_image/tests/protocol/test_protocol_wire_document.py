"""docs/formats/wire.md agrees with the code."""

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from delaymq.protocol import bodies, headers
from delaymq.protocol.binary_header import MAX_FIELDS
from delaymq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from delaymq.protocol.integers import Int32, Int64

DOCUMENT = Path(__file__).parents[3] / "docs" / "formats" / "wire.md"
LETTERS = {str: "s", bool: "b", Int32: "i", Int64: "l"}
WITHOUT_CLASS = {"RunningInfo", "DirectResult", "BrokerStats"}


@pytest.fixture(scope="module")
def document() -> str:
    return re.sub(r"\n +(?=\S)", " ", DOCUMENT.read_text())  # an entry of a list may have several lines


def field_text(field: msgspec.structs.FieldInfo) -> str:
    letter = next(LETTERS[kind] for kind in (field.type, *get_args(field.type)) if kind in LETTERS)
    return f"{field.encode_name} {letter}{'' if field.required else '?'}"


def request_rows(document: str) -> dict[int, tuple[str, str]]:
    rows = re.findall(r"^\| (\d+) \| ([A-Z_0-9]+) \| [NBC, ]+ \| (.*) \|$", document, re.MULTILINE)
    return {int(code): (name, rest) for code, name, rest in rows}


def test_every_header_is_documented_with_its_fields(document: str) -> None:
    documented = re.findall(r"^- `(\w+)`: (.*)$", document, re.MULTILINE)
    names = [name for name in headers.__all__ if name not in ("Header", "send_request_header")]
    assert dict(documented) == {
        name: ", ".join(field_text(field) for field in msgspec.structs.fields(getattr(headers, name))) for name in names
    }


def test_every_request_code_is_documented(document: str) -> None:
    rows = request_rows(document)
    (unserved,) = re.findall(r"which no server implements:\s([\d,\s]+)\.", document)
    numbers = {code: name for code, (name, _) in rows.items()}
    numbers |= {int(code): RequestCode(int(code)).name for code in unserved.split(",")}
    assert numbers == {code.value: code.name for code in RequestCode}


def test_every_name_in_the_request_table_is_explained(document: str) -> None:
    explained = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]*) \|", document, re.MULTILINE))))
    for name, rest in request_rows(document).values():
        for used in re.findall(r"`(\w+)`", rest):
            assert used in headers.__all__ or used in explained, name
    assert explained - WITHOUT_CLASS <= set(bodies.__all__)


def test_every_response_code_is_documented(document: str) -> None:
    answers = document.partition("## Response codes")[2].partition("## Requests")[0]
    for code in ResponseCode:
        within_a_range = 200 <= code <= 203 or 209 <= code <= 211
        assert within_a_range or code == 0 or re.search(rf"\b{code.value}\b", answers), code


def test_languages_and_limits_are_documented(document: str) -> None:
    for language in LanguageCode:
        assert f"{language.name} {language.value}" in document
    assert f"{MAX_FIELDS} fields in a header" in document
