"""/api/v1/session: sign in, sign out, and the rights of the caller."""

from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web

from delaymq.access import PUB, SUB
from delaymq.api_types.accounts import Permission, SessionEnded, SessionState, SignIn
from delaymq.clock import now_ms
from delaymq.message.names import retry_topic
from delaymq.server.api.routing import ApiError, Name, Query, parsed_query
from delaymq.server.http.responses import decode_json, json_response
from delaymq.server.http.sign_in.accounts import HttpAccounts, caller_of
from delaymq.server.http.sign_in.callers import ROLE_NAMES, Caller
from delaymq.server.http.sign_in.sessions import Session

if TYPE_CHECKING:
    from delaymq.server.broker_server import BrokerServer

_EXAMPLE: Final = '{"accessKey": "orders-service", "secretKey": "…"}'
_PERMISSIONS: Final[tuple[tuple[int, Permission], ...]] = ((PUB, "PUB"), (SUB, "SUB"))


class SessionQuery(Query):
    """Parameters of a session: a topic and a group whose permissions are returned."""

    topic: Name | None = None
    group: Name | None = None


class SessionHttp:
    """Handlers of sessions, of a broker or of a supervisor."""

    def __init__(self, server: "BrokerServer") -> None:
        self._accounts = server.http_accounts
        self._broker_name: str | None = server.config.broker_name
        self._address: str | None = server.broker.address

    @classmethod
    def of(cls, accounts: HttpAccounts | None, broker_name: str | None, address: str | None) -> "SessionHttp":
        """Return the handlers of a supervisor, for one of its groups, or for none."""
        made = cls.__new__(cls)
        made._accounts, made._broker_name, made._address = accounts, broker_name, address
        return made

    async def sign_in(self, request: web.Request) -> web.Response:
        """POST /api/v1/session: verify an account and begin a session, in a cookie or as a bearer token."""
        accounts = self._accounts
        if accounts is None:
            text = "the broker has no accounts: enable access control (aclEnable=true), or use the token (httpToken)"
            raise ApiError(409, "no_accounts", text)
        try:
            wanted = decode_json(await request.read(), SignIn)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # The reason may contain a part of the secret key.
            raise ApiError(400, "bad_request", f"the body is invalid: send an object such as {_EXAMPLE}") from None
        begun = accounts.sign_in(request, wanted)
        if isinstance(begun, web.Response):
            return begun
        token, session = begun
        state = self._state(caller_of(request), session)
        if wanted.bearer:
            state.token = token
        response = json_response(state)
        if not wanted.bearer:
            accounts.set_cookie(request, response, token)
        return response

    async def session(self, request: web.Request) -> SessionState:
        """GET /api/v1/session: return the rights of the caller."""
        query = parsed_query(dict(request.query), SessionQuery)
        caller = caller_of(request)
        session = None if self._accounts is None or caller.account is None else self._accounts.session_of(request)
        return self._state(caller, session, query.topic, query.group)

    async def sign_out(self, request: web.Request) -> web.Response:
        """DELETE /api/v1/session: end the session, and remove the cookie."""
        accounts = self._accounts
        is_ended = accounts is not None and accounts.sign_out(request)
        response = json_response(SessionEnded(signed_out=is_ended))
        if accounts is not None and "Authorization" not in request.headers:
            accounts.set_cookie(request, response, "")
        return response

    def _state(
        self, caller: Caller, session: Session | None, topic: str | None = None, group: str | None = None
    ) -> SessionState:
        as_of_ms = now_ms()
        ends_ms: tuple[int, int] | tuple[None, None] = (None, None)
        if self._accounts is not None and session is not None:
            idle_s, end_s = self._accounts.left_s(session)
            ends_ms = as_of_ms + round(idle_s * 1_000), as_of_ms + round(end_s * 1_000)
        return SessionState(
            as_of_ms=as_of_ms,
            account=None if caller.account is None else caller.name,
            role=ROLE_NAMES[caller.role],
            access_control=self._accounts is not None,
            idle_expires_ms=ends_ms[0],
            expires_ms=ends_ms[1],
            broker_name=self._broker_name,
            address=self._address,
            topic_permissions=None if topic is None else _permissions(caller, topic),
            group_permissions=None if group is None else _permissions(caller, retry_topic(group)),
        )


def _permissions(caller: Caller, topic: str) -> list[Permission]:
    return [name for permission, name in _PERMISSIONS if caller.may(topic, permission)]
