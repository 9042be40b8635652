"""No secret of a request reaches the audit log: 100,000 lines of hostile requests, with known secrets everywhere."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from delaymq.audit.log import AuditLog
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Command, Response, request_command
from delaymq.protocol.credential_fields import CREDENTIAL_FIELDS
from delaymq.server.audit.auditing import BrokerAuditing, attempt_of, result_of
from delaymq.server.audit.http import auditing
from delaymq.server.audit.requests import BROKER_CHANGES, NAMESRV_CHANGES, SECRET_FIELDS
from delaymq.server.audit.routes import CHANGES
from delaymq_testing.audit_lines import NOW_MS, text_of
from delaymq_testing.broker.guarded import RULES, SECRETS
from delaymq_testing.broker.harness import FakeSession, Harness, made
from delaymq_testing.hostile.frames import signed
from delaymq_testing.hostile.requests import HostileRequests
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED

LINES = min(FUZZ_INPUTS * 5, 300_000)
"""100,000 unless DELAYMQ_FUZZ_INPUTS says otherwise."""
CANARY: Final = "c4nary"
ODD: Final = ("", '"', "\\", "\n", "é", "\u202e", "'", "/", " ", "=", "\x7f")

pytestmark = pytest.mark.timeout(300 + FUZZ_INPUTS // 100)


class Session(FakeSession):
    """A connection that keeps whose signature was good."""

    signer = ""

    def signed_by(self, account: str) -> None:
        self.signer = account


def opened(folder: Path) -> AuditLog:
    """A log without effective limits, because each line matters here."""
    seconds = iter(range(0, 1 << 60, 1_000))
    return AuditLog(
        folder, "b", max_bytes=1 << 30, max_files=10, now_ms=lambda: NOW_MS, steady_s=lambda: float(next(seconds))
    )


def secret(chance: random.Random) -> str:
    return f"{chance.choice(ODD)}{CANARY}-{chance.randbytes(chance.choice((4, 12, 60))).hex()}{chance.choice(ODD)}"


def remark(chance: random.Random, secrets: list[str]) -> str:
    """What a careless error message would say."""
    told = chance.choice(secrets)
    form = chance.choice((told, repr(told), json.dumps(told), told[:80], repr(told[:80]), f"key={told}"))
    return f"no such thing: {form}, or {chance.choice(secrets)!r}"


def hostile(chance: random.Random) -> tuple[Command, list[str]]:
    """A changing request with secrets in each field that has one, in its body, and in addresses; those in fields."""
    code = chance.choice(list({*BROKER_CHANGES, *NAMESRV_CHANGES}))
    secrets = [secret(chance) for _ in range(3)]
    fields = {name: chance.choice(secrets) for name in SECRET_FIELDS | {*CREDENTIAL_FIELDS} - {"AccessKey"}}
    address = f"http://user:{CANARY}{chance.randrange(1_000)}@10.0.0.1:10911"
    names = ("topic", "group", "groupName", "brokerName", "brokerAddr", "key", "namespace", "accessKey", "AccessKey")
    for name in names:
        fields[name] = chance.choice(("T", "a b", "x" * 500, "é\n\u2028", address, ""))
    keys = ("httpToken", "traceOn", "tls.server.keyPassword", secrets[0].replace("=", ""))
    body = "\n".join(f"{chance.choice(keys)}{chance.choice(('=', ' = ', ''))}{each}" for each in secrets)
    told = [fields[name] for name in sorted(SECRET_FIELDS)]
    return request_command(code, fields, body.encode(errors="replace")), told


def test_no_secret_of_a_request_is_written(tmp_path: Path) -> None:
    chance = random.Random(f"audit {SEED}")
    log, session = opened(tmp_path), Session()
    for _ in range(LINES):
        command, secrets = hostile(chance)
        change = BROKER_CHANGES.get(command.code) or NAMESRV_CHANGES[command.code]
        body = command.body.decode().splitlines()
        values = [line.partition("=")[2] for line in body]
        told = [each for each in (*secrets, *body, *values) if each.strip()]
        attempt = attempt_of(cast("Any", session), command, change, command.fields["AccessKey"])
        code = chance.choice((0, 1, 10, 16, 209))
        log.record(attempt, result_of(code), code, remark(chance, told))
    text = text_of(tmp_path)
    assert text.count("\n") == LINES
    assert log.dropped == 0
    assert [line for line in text.splitlines() if CANARY in line] == []


class SignsSome:
    """Requests of accounts, some with wrong signatures, and with secrets in fields that no signature covers."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def __call__(self, pairs: list[tuple[str, Any]], body: bytes) -> list[tuple[str, Any]]:
        key = self._chance.choice(("operators", "operators", "application", "limited-admin", "nobody-at-all"))
        known = SECRETS.get(key, f"{CANARY}-unknown") if self._chance.randrange(4) else f"{CANARY}-wrong"
        return list(signed(key, known, pairs, body))


def commands(requests: HostileRequests, sign: SignsSome) -> Iterator[Command]:
    while True:
        code, pairs, body = requests.request()
        pairs = sign(pairs, body) if requests.random.randrange(9) else pairs
        fields = {str(name): str(value) for name, value in pairs}
        for name in fields.keys() - SECRET_FIELDS:
            fields[name] = fields[name].replace(CANARY, "name")  # values of other fields are names
        yield Command(code, fields=fields, body=body.replace(CANARY.encode(), b"name"))


def test_no_secret_of_an_account_is_written_by_a_broker_under_attack(tmp_path: Path) -> None:
    chance = random.Random(f"audit of a broker {SEED}")
    path = tmp_path / "plain_acl.yml"
    path.write_text(RULES)
    harness = Harness(tmp_path, acl_enable=True, acl_config_path=str(path), auto_create_topic_enable=True)
    log = opened(tmp_path / "audit")
    audit = BrokerAuditing(harness.broker, log)
    session = Session()
    session.is_private = True
    values = [f"{CANARY}-{number}-secret" for number in range(5)]
    texts = dict.fromkeys(SECRET_FIELDS, values) | {"accessKey": ["newcomer-1", "newcomer-2"]}
    requests = HostileRequests(f"audit {SEED}", BROKER_CHANGES, texts=texts)
    for _, command in zip(range(FUZZ_INPUTS // 4), commands(requests, SignsSome(chance)), strict=False):
        recorded, result = audit.handle(session, command)
        result = made(harness.broker, command.code, result)
        answered = getattr(recorded, "answered", None)
        if answered is not None and isinstance(result, Response):
            answered(result)
    text = text_of(tmp_path / "audit")
    harness.broker.close()
    assert log.lines["done"] > 10
    assert log.lines["refused"] > FUZZ_INPUTS // 20
    assert log.dropped == 0
    for each in (CANARY, *SECRETS.values()):
        assert [line for line in text.splitlines() if each in line] == []


async def answer_repeats_everything(request: web.Request) -> web.Response:
    body = (await request.read()).decode(errors="replace")
    text = f"{request.headers.get('Authorization')} {[*request.query.values()]} {request.headers.get('Cookie')}"
    error = {"code": "bad_request", "message": f"{text}: {len(body)} bytes"}
    return web.json_response({"error": error}, status=request["status"])


@pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")
@pytest.mark.parametrize("prefix", ["", "/brokers/"])
def test_no_secret_of_an_http_request_is_written(tmp_path: Path, prefix: str) -> None:
    import asyncio

    chance = random.Random(f"audit of HTTP {SEED}")
    log = opened(tmp_path)
    handle = auditing(log, has_token=True, prefix=prefix)
    count = FUZZ_INPUTS // 10

    async def scenario() -> None:
        for _ in range(count):
            method, template = chance.choice(list(CHANGES))
            names = {name: f"n{chance.randrange(9)}" for name in ("group", "topic", "account", "holder")}
            told = secret(chance).replace("\n", "").replace("é", "").replace("\u202e", "").replace("\x7f", "")
            headers = {"Authorization": f"Bearer {told}", "Cookie": told, "Content-Type": "application/json"}
            path = f"{prefix}b{template}" if prefix else template
            query = f"?token={CANARY}{chance.randrange(99)}"
            request = make_mocked_request(method, path.format(**names) + query, headers=headers)
            request["status"] = chance.choice((200, 400, 401, 403, 503))
            stated = {"action": "cancel", "topic": "T", "handle": told, "bodyText": told, "properties": {"k": told}}
            cast("Any", request)._read_bytes = json.dumps(stated).encode()
            if not prefix:
                resource = type("Resource", (), {"canonical": template})()
                request._match_info = cast("Any", _Match(names, resource))
            await handle(request, answer_repeats_everything)

    asyncio.run(scenario())
    text = text_of(tmp_path)
    assert text.count("\n") == count
    assert CANARY not in text


class _Match(dict[str, str]):
    def __init__(self, names: dict[str, str], resource: object) -> None:
        super().__init__(names)
        self.route = type("Route", (), {"resource": resource})()

    def add_app(self, app: object) -> None:
        """Called by aiohttp."""


def test_response_codes_of_changes_in_effect_are_not_refusals() -> None:
    assert {code for code in ResponseCode if result_of(code) == "unconfirmed"} == {10, 11, 12}
    assert {code for code in ResponseCode if result_of(code) == "done"} == {0}
