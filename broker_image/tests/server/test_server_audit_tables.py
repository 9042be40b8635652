"""Every request code and every changing HTTP route is audited, or listed with the reason why it is not."""

import msgspec
import pytest
from delaymq.broker.access.forms import FORMS
from delaymq.broker.processors.table import PROCESSORS, PROCESSORS_OF_ACCESS, PROCESSORS_READ_ONLY
from delaymq.namesrv.guard import GUARDED
from delaymq.namesrv.table import PROCESSORS as NAMESRV_PROCESSORS
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq.protocol.headers.base import Header
from delaymq.server.api.routes import ROUTES
from delaymq.server.audit.requests import (
    BROKER_CHANGES,
    BROKER_OTHERS,
    NAMESRV_CHANGES,
    NAMESRV_OTHERS,
    SECRET_FIELDS,
    names_of,
)
from delaymq.server.audit.routes import CHANGES, OTHERS, change_at
from delaymq.server.http.responses import READING_METHODS
from delaymq_testing.hostile.words import HEADERS

REQUIRED = {17, 25, 50, 51, 53, 200, 207, 215, 222, 306, 314, 316, 323, 329, 370}
REQUIRED_OF_NAMESRV = {100, 102, 103, 104, 205, 216, 318, 327}


def test_every_request_code_of_a_broker_is_in_one_table() -> None:
    served = {*PROCESSORS, *PROCESSORS_READ_ONLY, *PROCESSORS_OF_ACCESS}
    assert {*BROKER_CHANGES, *BROKER_OTHERS} == served
    assert not BROKER_CHANGES.keys() & BROKER_OTHERS.keys()
    assert REQUIRED | FORMS.keys() <= BROKER_CHANGES.keys()


def test_every_request_code_of_a_nameserver_is_in_one_table() -> None:
    assert {*NAMESRV_CHANGES, *NAMESRV_OTHERS} == {*NAMESRV_PROCESSORS}
    assert not NAMESRV_CHANGES.keys() & NAMESRV_OTHERS.keys()
    assert {*NAMESRV_CHANGES} == REQUIRED_OF_NAMESRV == {*GUARDED}


def test_every_changing_http_route_is_in_one_table() -> None:
    changing = {(route.method, route.path) for route in ROUTES if route.method not in READING_METHODS}
    assert {*CHANGES, *OTHERS} == changing
    assert not CHANGES.keys() & OTHERS.keys()


def test_every_code_and_route_that_is_not_audited_has_a_reason() -> None:
    assert all({**BROKER_OTHERS, **NAMESRV_OTHERS, **OTHERS}.values())


def test_actions_are_nouns_and_verbs() -> None:
    actions = [change.action for change in (*BROKER_CHANGES.values(), *NAMESRV_CHANGES.values())]
    actions += [f"{change.action}.{change.action_member}".removesuffix(".") for change in CHANGES.values()]
    for action in actions:
        noun, _, verb = action.partition(".")
        assert noun
        assert verb
        assert all(each in "abcdefghijklmnopqrstuvwxyz-" for each in noun + verb)


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_paths_lead_to_their_routes(method: str, path: str) -> None:
    found = change_at(method, path.format(group="mine", topic="T", account="A", holder="backup-1"))
    assert found is not None
    assert found[0] == (method, path)
    assert set(found[1]) == {part[1:-1] for part in path.split("/") if part.startswith("{")}
    assert change_at("GET", path) is None
    assert change_at(method, path + "/more") is None


@pytest.mark.parametrize("code", sorted({*BROKER_CHANGES, *NAMESRV_CHANGES}))
def test_names_come_from_fields_that_the_request_has(code: int) -> None:
    header = HEADERS.get(code)
    fields = {} if header is None else {field.encode_name: f"<{field.encode_name}>" for field in _fields(header)}
    fields.setdefault("topic", "<topic>")  # of 323 in RocketMQ 5
    bodies = {25: b"traceOn=x\nnoKey=y", 318: b"orderMessageEnable=x", 200: b'{"groupName":"<group>"}'}
    command = request_command(code, fields, bodies.get(code, b""))
    change = BROKER_CHANGES.get(code) or NAMESRV_CHANGES[code]
    names = names_of(change, command)
    assert all(value or kind == "otherSettings" for kind, value in names.items()), names
    without_names = {RequestCode.CLEAN_UNUSED_TOPIC, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE}
    assert names or code in without_names | {RequestCode.DELETE_EXPIRED_COMMITLOG}
    assert not {f"<{field}>" for field in SECRET_FIELDS} & {*names.values()}


def _fields(header: type[Header]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(header)
