"""A broker with access control, and requests signed by its accounts."""

import os
from pathlib import Path
from typing import Any

from delaymq.broker.access.rules import Rules
from delaymq.protocol.command import Response, request_command
from delaymq.protocol.signatures import Signer

from delaymq_testing.broker.harness import FakeSession, Harness, made

SECRETS = {"operators": "operators-secret", "application": "application-secret", "limited-admin": "limited-secret"}
RULES = """
globalWhiteRemoteAddresses: [10.1.0.*]
accounts:
- {accessKey: operators, secretKey: operators-secret, admin: true}
- accessKey: application
  secretKey: application-secret
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms: [Orders=PUB|SUB, Read=SUB, Write=PUB, "%DLQ%mine=SUB"]
  groupPerms: [mine=SUB]
- {accessKey: limited-admin, secretKey: limited-secret, admin: true, defaultTopicPerm: SUB, topicPerms: [Orders=PUB]}
- {accessKey: generous, secretKey: generous-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB,
   topicPerms: [Orders=DENY]}
- {accessKey: neighbours, secretKey: neighbour-secret, whiteRemoteAddress: 10.2.0.1}
"""
MISSING = "No default permission for "


def rewrite_rules(rules: Rules, path: Path, text: str) -> None:
    """Change a file of valid rules, and let the broker reload it."""
    path.write_text(text)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1_000_000))
    reload_rules(rules)
    assert rules.problems == []


def reload_rules(rules: Rules) -> None:
    """Run the job that looks for changed files, without its interval."""
    task = rules.reload_task()
    task.run()
    task.finish()


class Guarded:
    """A broker with rules, and requests signed by accounts."""

    def __init__(self, harness: Harness, path: Path) -> None:
        self.harness = harness
        self.path = path
        self.broker = harness.broker
        access = harness.broker.access
        assert access is not None
        self.access = access
        harness.session.is_private = True  # the way of administrators' requests is a matter of its own

    def ask(
        self,
        code: int,
        fields: dict[str, Any] | None = None,
        body: bytes = b"",
        *,
        key: str | None = "application",
        secret: str | None = None,
        session: FakeSession | None = None,
        **extra: Any,
    ) -> Any:
        command = request_command(code, {name: str(value) for name, value in (fields or {}).items()}, body)
        if key is not None:
            Signer(secret or SECRETS.get(key, f"{key}-secret")).sign(command, key)
        for name, value in extra.items():
            setattr(command, name, value)
        return made(self.broker, code, self.broker.handle(session or self.harness.session, command))

    def refusal(self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"", **options: Any) -> str:
        """What access control says; empty when it lets the request through."""
        result = self.ask(code, fields, body, **options)
        if isinstance(result, Response) and (result.remark or "").startswith("org.apache.rocketmq.acl.common.AclExc"):
            assert result.code == 1
            return str(result.remark).partition("AclException: ")[2]
        return ""

    def reload(self) -> None:
        reload_rules(self.access.rules)
