"""Users, and the accounts in their Secrets."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from kind import objects
from kind.space import Space
from kind.waiting import NotYetError

USER = "user.delaymq.io"
IN_FORCE_S = 90.0
"""Kubelets of these clusters look for changed Secrets every 10 s; the servers read them 2 s later."""


def user(
    name: str,
    broker: str,
    *,
    topics: Mapping[str, str] | None = None,
    groups: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return a User with these permissions by name."""
    whole = {"brokerRef": {"name": broker}, "topics": _permissions(topics), "groups": _permissions(groups), **spec}
    return {"apiVersion": objects.API_VERSION, "kind": "User", "metadata": {"name": name}, "spec": whole}


def _permissions(stated: Mapping[str, str] | None) -> list[dict[str, str]]:
    return [{"name": name, "permission": permission} for name, permission in (stated or {}).items()]


def account_of(space: Space, name: str) -> dict[str, Any]:
    """Return the options of a client with the account in the Secret of a User."""
    data = space.get("secret", f"{name}-credentials")["data"]
    texts = {key: base64.b64decode(text).decode() for key, text in data.items()}
    return {"access_key": texts["accessKey"], "secret_key": texts["secretKey"]}


def has_new_key(space: Space, name: str, former: dict[str, Any]) -> bool:
    """Return True if the Secret of a User has another key; NotYetError with the User's state otherwise."""
    if account_of(space, name) == former:
        raise NotYetError(space.condition(USER, name, "Ready").get("message", ""))
    return True
