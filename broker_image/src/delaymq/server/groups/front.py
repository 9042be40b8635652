"""HTTP interface of a supervisor: probes, sums over its groups, and forwarding to one group.

Requests below /brokers/NAME/ are forwarded to the HTTP server of that group, which has the interface of a broker. The
supervisor checks the token or the session of a request, and replaces it by the token of the groups' servers and the
name of the account, whose rights the group checks. Requests for paths that need no token are forwarded without one, so
that a group decides again which paths are open. Sessions are those of the supervisor, for all groups.
"""

from __future__ import annotations

import asyncio
import html
from collections.abc import Awaitable, Callable
from socket import socket
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import quote

import aiohttp
import msgspec
from aiohttp import web
from yarl import URL

from delaymq.api_types.base import Problem
from delaymq.api_types.broker import Alive, NotAlive, Ready
from delaymq.api_types.cluster import BrokerProcess, Brokers
from delaymq.api_types.totals import Totals
from delaymq.server.api.sessions.endpoints import SessionHttp
from delaymq.server.audit.http import FORWARDED, auditing
from delaymq.server.groups.merging import merged_metrics, merged_totals
from delaymq.server.http.guard import GROUP_PREFIX, METRICS_PATH, SESSION_PATH, guard, is_open_path, path_of_broker
from delaymq.server.http.http_server import MAX_BODY_BYTES, NOT_ENCODED, HttpServer, abort, serve
from delaymq.server.http.responses import ApiError, error_response, json_response, readiness
from delaymq.server.http.sign_in.accounts import ACCOUNT_HEADER, HttpAccounts, caller_of
from delaymq.server.http.sign_in.callers import READ
from delaymq.server.http.sign_in.peers import PEER_HEADER, peer_of
from delaymq.server.listening import LOOPBACK
from delaymq.server.metrics.exposition import CONTENT_TYPE
from delaymq.transport.addresses import host_and_port

if TYPE_CHECKING:
    from delaymq.server.groups.group_process import GroupProcess
    from delaymq.server.groups.supervisor import Supervisor

MAX_FORWARDED: Final = 64
"""Maximum concurrent requests that are forwarded to one group; the rest of its connections is left to probes."""
MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
"""Limit of a group's response that is merged with others."""
PROBE_TIMEOUT_S: Final = 2.0
SUM_TIMEOUT_S: Final = 5.0
CONNECT_TIMEOUT_S: Final = 2.0
SILENCE_TIMEOUT_S: Final = 60.0
"""Time without a byte of a forwarded response after which the request fails."""
CHUNK_BYTES: Final = 64 * 1024
SHOWN_NAMES: Final = 10
"""Maximum number of names in an error message."""
_ROUTE: Final = GROUP_PREFIX + "{broker}/{path:.*}"
_CANONICAL_ROUTE: Final = GROUP_PREFIX + "{broker}/{path}"
_TO_GROUP: Final = ("Accept", "Accept-Encoding", "Content-Type", "If-None-Match", "If-Range", "Range")
"""Headers of a request that are forwarded; aiohttp has decoded the body, so Content-Encoding is not."""
_NOT_FROM_GROUP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "server", "date"})

T = TypeVar("T")


class NoAnswerError(Exception):
    """A group did not respond; the text is a sentence without the group's name."""


class Front:
    """Handlers of a supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        rules, config = supervisor.rules, supervisor.config
        self.accounts = None if rules is None else HttpAccounts(lambda: rules.accounts, config)
        if rules is not None and self.accounts is not None:
            rules.on_changed = self.accounts.review
        self._has_closed_metrics = bool(config.http_metrics_token)
        self._groups = {group.name: group for group in supervisor.groups}
        self._forwarding = dict.fromkeys(self._groups, 0)
        self._authorization = {"Authorization": f"Bearer {supervisor.http_token}"}
        self._shared: dict[str, asyncio.Task[Any]] = {}
        # A connection for each request: a group that restarts would close kept ones while they are used.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._client = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
        )

    async def close(self, app: web.Application) -> None:
        """Close the connections to the groups."""
        await self._client.close()

    # Probes and sums

    async def alive(self, request: web.Request) -> web.Response:
        """/livez: 503 if a running group does not respond, or has to be restarted."""
        answers = await self._once("livez", lambda: self._ask_all("/livez", PROBE_TIMEOUT_S))
        problems = [
            f"{name}: {answer if isinstance(answer, NoAnswerError) else answer[1].decode(errors='replace')[:500]}"
            for name, answer in answers.items()
            if self._groups[name].report is not None and (isinstance(answer, NoAnswerError) or answer[0] != 200)
        ]
        if problems:
            error = Problem(code="not_alive", message="; ".join(problems))
            return json_response(NotAlive(alive=False, error=error), 503)
        return json_response(Alive(alive=True))

    async def ready(self, request: web.Request) -> web.Response:
        """/readyz: 200 if all groups are ready."""
        return readiness(await self._once("readyz", self._not_ready))

    async def metrics(self, request: web.Request) -> web.Response:
        """/metrics: the metrics of all groups, with the label `broker`."""
        text = await self._once("metrics", self._metrics)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})

    async def totals(self, request: web.Request) -> web.Response:
        """/api/v1/totals: the sums of all groups that respond."""
        if caller_of(request).role < READ:
            return error_response(403, "role_needed", "the totals of all brokers need the role read")
        totals = await self._once("totals", self._totals)
        if totals is None:
            return error_response(503, "broker_down", "no broker responds: see the log for the reason")
        return json_response(totals)

    async def brokers(self, request: web.Request) -> web.Response:
        """/api/v1/brokers: the groups, and where the HTTP interface of each is."""
        return json_response(Brokers(brokers=[_row(group) for group in self._groups.values()]))

    async def session(self, request: web.Request) -> web.StreamResponse:
        """/api/v1/session, also below the path of a group: sign in and out for all groups."""
        name = request.match_info.get("broker")
        group = None if name is None else self._groups.get(name)
        if name is not None and group is None:
            return self._unknown(name)
        report = None if group is None else group.report
        handlers = SessionHttp.of(self.accounts, name, None if report is None else report.address)
        try:
            match request.method:
                case "POST":
                    return await handlers.sign_in(request)
                case "DELETE":
                    return await handlers.sign_out(request)
                case _:
                    return json_response(await handlers.session(request))
        except ApiError as error:
            return error_response(error.status, error.code, error.message)

    async def index(self, request: web.Request) -> web.Response:
        """/: links to the groups' consoles."""
        links = "".join(
            f'<li><a href="{quote(_path(name).lstrip("/"))}/">{html.escape(name)}</a></li>' for name in self._groups
        )
        text = f"<!doctype html><html lang=en><title>DelayMQ</title><h1>DelayMQ: brokers</h1><ul>{links}</ul></html>"
        return web.Response(text=text, content_type="text/html")

    async def console(self, request: web.Request) -> web.Response:
        """/brokers/NAME: redirect to the group's console."""
        raise web.HTTPPermanentRedirect(quote(request.match_info["broker"]) + "/")

    async def elsewhere(self, request: web.Request) -> web.Response:
        """Other paths of a broker: name the paths at which the groups have them."""
        names = ", ".join([*self._groups][:SHOWN_NAMES])
        text = f"this address serves several brokers ({names}): put /brokers/NAME before the path of the request"
        return error_response(400, "several_brokers", text)

    async def _not_ready(self) -> list[str]:
        if self._supervisor.is_stopping:
            return ["the groups are being stopped"]
        problems = []
        for name, answer in (await self._ask_all("/readyz", PROBE_TIMEOUT_S)).items():
            if isinstance(answer, NoAnswerError):
                problems.append(f"{name}: {answer}")
            else:
                told = _decoded(answer[1], Ready)
                problems += [f"{name}: {each}" for each in (told.not_ready if told is not None else ["no status"])]
        return problems

    async def _metrics(self) -> bytes:
        answers = await self._ask_all("/metrics", SUM_TIMEOUT_S)
        texts = {
            name: answer[1]
            for name, answer in answers.items()
            if not isinstance(answer, NoAnswerError) and answer[0] == 200
        }
        restarts = {name: group.restarts for name, group in self._groups.items()}
        return await asyncio.to_thread(merged_metrics, texts, restarts)

    async def _totals(self) -> Totals | None:
        answers = await self._ask_all("/api/v1/totals", SUM_TIMEOUT_S)
        found: dict[str, Totals] = {}
        missing = []
        for name, answer in answers.items():
            told = None if isinstance(answer, NoAnswerError) else _decoded(answer[1], Totals)
            if told is not None:
                found[name] = told
            else:
                missing.append(f"{name}: {answer if isinstance(answer, NoAnswerError) else 'no totals'}")
        return merged_totals(found, missing) if found else None

    async def _once(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `work`, shared by all requests that arrive while it runs."""
        task = self._shared.get(what)
        if task is None or task.done():
            task = self._shared[what] = asyncio.ensure_future(work())
        return cast("T", await asyncio.shield(task))

    async def _ask_all(self, path: str, timeout_s: float) -> dict[str, tuple[int, bytes] | NoAnswerError]:
        """Return status and body of each group's response."""
        answers = await asyncio.gather(*(self._ask(group, path, timeout_s) for group in self._groups.values()))
        return dict(zip(self._groups, answers, strict=True))

    async def _ask(self, group: GroupProcess, path: str, timeout_s: float) -> tuple[int, bytes] | NoAnswerError:
        if group.report is None:
            return NoAnswerError(f"the process is not running ({group.state})")
        try:
            url, headers = f"http://{LOOPBACK}:{group.report.http_port}{path}", self._authorization
            timeout = aiohttp.ClientTimeout(total=timeout_s)
            async with self._client.get(url, headers=headers, timeout=timeout) as answer:
                data = bytearray()
                async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
                    data += chunk
                    if len(data) > MAX_ANSWER_BYTES:
                        return NoAnswerError(f"the response exceeds {MAX_ANSWER_BYTES} bytes")
                return answer.status, bytes(data)
        except TimeoutError:
            return NoAnswerError(f"no response within {timeout_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return NoAnswerError(f"no response ({type(error).__name__})")

    # Forwarding

    async def forward(self, request: web.Request) -> web.StreamResponse:
        """/brokers/NAME/…: the response of that group."""
        name = request.match_info["broker"]
        group = self._groups.get(name)
        if group is None:
            return self._unknown(name)
        if group.report is None:
            return error_response(503, "broker_down", f"broker {name} is not running: {group.state}")
        if self._forwarding[name] >= MAX_FORWARDED:
            return error_response(503, "busy", f"{MAX_FORWARDED} other requests to broker {name} are open: try again")
        self._forwarding[name] += 1
        try:
            return await self._forwarded(request, group.report.http_port)
        finally:
            self._forwarding[name] -= 1

    def _unknown(self, name: str) -> web.Response:
        known = ", ".join([*self._groups][:SHOWN_NAMES])
        return error_response(404, "broker_not_found", f"no broker {name[:64]!r} here: use one of {known}")

    async def _forwarded(self, request: web.Request, port: int) -> web.StreamResponse:
        headers = {name: request.headers[name] for name in _TO_GROUP if name in request.headers}
        is_closed_path = self._has_closed_metrics and path_of_broker(request.path) == METRICS_PATH
        if is_closed_path:
            headers |= self._authorization
        elif not is_open_path(request.path):
            headers |= self._authorization
            if name := caller_of(request).name:
                headers[ACCOUNT_HEADER] = quote(name, safe="")
        headers[PEER_HEADER] = host_and_port(*peer_of(request))
        request[FORWARDED] = True
        target = request.rel_url.raw_path.split("/", 3)[3]
        if request.rel_url.raw_query_string:
            target += "?" + request.rel_url.raw_query_string
        url = URL(f"http://{LOOPBACK}:{port}/{target}", encoded=True)
        response: web.StreamResponse | None = None
        try:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=SILENCE_TIMEOUT_S)
            body = request.content if request.can_read_body else None
            async with self._client.request(
                request.method, url, headers=headers, data=body, timeout=timeout, allow_redirects=False
            ) as answer:
                response = web.StreamResponse(status=answer.status, reason=answer.reason)
                for key, value in answer.headers.items():
                    if key.lower() not in _NOT_FROM_GROUP:
                        response.headers.add(key, value)
                await response.prepare(request)
                async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
                    await response.write(chunk)
                await response.write_eof()
                return response
        except (aiohttp.ClientError, web.RequestPayloadError, TimeoutError) as error:
            if isinstance(request.content.exception(), web.RequestPayloadError):
                return error_response(400, "bad_request", NOT_ENCODED)
            if response is None or not response.prepared:
                return error_response(503, "broker_down", f"the broker does not respond ({type(error).__name__})")
            # The response is incomplete, and its end must not look like a complete one.
            if request.transport is not None:
                abort(request.transport)
            return response


def _row(group: GroupProcess) -> BrokerProcess:
    return BrokerProcess(
        broker_name=group.name,
        address=group.report.address if group.report is not None else None,
        path=quote(_path(group.name)),
        state=group.state,
        restarts=group.restarts,
    )


def _path(name: str) -> str:
    return GROUP_PREFIX + name


def _decoded(data: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError:
        return None


async def front_http(supervisor: Supervisor, bound: socket) -> HttpServer:
    """Start the HTTP server of a supervisor on a bound socket."""
    front = Front(supervisor)
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.on_cleanup.append(front.close)
    for path, handler in (
        ("/livez", front.alive),
        ("/readyz", front.ready),
        ("/metrics", front.metrics),
        ("/api/v1/totals", front.totals),
        ("/api/v1/brokers", front.brokers),
        ("/", front.index),
        (GROUP_PREFIX + "{broker}", front.console),
    ):
        app.router.add_get(path, handler)
    for path in (SESSION_PATH, GROUP_PREFIX + "{broker}" + SESSION_PATH):
        app.router.add_get(path, front.session)
        app.router.add_post(path, front.session)
        app.router.add_delete(path, front.session)
    app.router.add_route("*", _ROUTE, front.forward)
    app.router.add_route("*", "/{path:.*}", front.elsewhere)
    config = supervisor.config
    audited = auditing(supervisor.audit, has_token=bool(config.http_token), prefix=GROUP_PREFIX)
    host, names, metrics = config.http_host, config.own_http_names, config.http_metrics_token
    guarded = guard(host, config.http_token, names, accounts=front.accounts, metrics_token=metrics)
    tls = supervisor.tls.for_http
    return await serve(app, bound, guarded, own_bodies=[_CANONICAL_ROUTE], audited=audited, tls=tls)
