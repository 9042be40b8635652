"""Infrastructure of /api/v1: routes with their parameters and responses, errors, and reading in threads."""

import asyncio
import copy
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from aiohttp import web

from delaymq.protocol.errors import RequestError
from delaymq.server.http import responses
from delaymq.server.http.responses import JSON, decode_json, error_response, json_response
from delaymq.server.http.sign_in.accounts import caller_of
from delaymq.server.http.sign_in.callers import EVERYTHING, Caller
from delaymq.server.http.sign_in.needs import Needs
from delaymq.server.log_reader import LogFiles

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.server.broker_server import BrokerServer

MAX_PAGE: Final = 1_000
"""Maximum rows of one response."""
MAX_READS: Final = 2
"""Maximum concurrent requests that read old messages; each has a thread."""
MAX_WAITING: Final = 64
"""Maximum requests waiting for one of these threads; further ones get 503."""
MAX_WAIT_S: Final = 5.0
_ANY_CODE: Final = 0
"""Request code of which quotas count the requests."""

Limit = Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE, description="maximum rows in the response")]
Name = Annotated[str, msgspec.Meta(max_length=255)]
TimeMs = Annotated[int, msgspec.Meta(ge=0, le=1 << 53, description="ms since the epoch")]
T = TypeVar("T")
Q = TypeVar("Q", bound="Query")


class Query(msgspec.Struct, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Parameters of a request, from its path and query string."""


ApiError: TypeAlias = responses.ApiError
"""Error response as an exception."""


@dataclass(frozen=True)
class Route:
    """One operation, as the router and the OpenAPI description need it."""

    method: str
    path: str
    summary: str
    handle: Callable[..., Awaitable[Any]]
    """`handle(api)`, with the parsed `query` and `body` as further arguments if defined, returns an `answer`.

    A method receives the request instead, and may return a complete response; its class is created with the server.
    """
    answer: Any
    """Type of the JSON response; None: not JSON."""
    _: KW_ONLY
    needs: Needs
    """What the caller needs; without a default, so that no route is open by mistake."""
    query: type[Query] | None = None
    body: Any = None
    """Type of the request body; `object` for any JSON, which is ignored."""
    described: Any = None
    """Type of the body in the description, where it is more precise than `body`."""
    status: int = 200
    content: str = JSON
    refusals: tuple[int, ...] = ()
    """Error statuses besides those that every request may get."""
    of_master: bool = False
    """Whether replicas refuse the operation with 409, because it changes what they receive from their master."""
    receives_body: bool = False
    """Whether the handler, a method, receives the request body, with a limit of its own."""

    @property
    def owner(self) -> str | None:
        """Name of the class that defines the handler; None for a function."""
        return self.handle.__qualname__.rpartition(".")[0] or None


get: Final = partial(Route, "GET")
post: Final = partial(Route, "POST")
put: Final = partial(Route, "PUT")


class Api:
    """Context of handlers: the broker, and the threads for reading."""

    def __init__(self, server: "BrokerServer") -> None:
        self.server = server
        self.routes: tuple[Route, ...] = ()
        """All routes; set by `add_routes`."""
        self.resending = asyncio.Lock()
        """Held while dead letters are resent."""
        self.caller: Caller = EVERYTHING
        """Sender of the request."""
        self._reads = _Reads()
        self._threads = ThreadPoolExecutor(MAX_READS, thread_name_prefix="http-api")

    def of(self, caller: Caller) -> "Api":
        """Return the context of a request of `caller`, which shares everything else."""
        other = copy.copy(self)
        other.caller = caller
        return other

    @property
    def broker(self) -> "Broker":
        """The server's broker."""
        return self.server.broker

    async def close(self, app: web.Application | None = None) -> None:
        """Shut down the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Acquire a permit for reading; raise ApiError 503 if none becomes available in time. Must not be nested."""
        reads = self._reads
        if reads.waiting >= MAX_WAITING:
            raise _busy()
        reads.waiting += 1
        try:
            async with asyncio.timeout(MAX_WAIT_S):
                await reads.permits.acquire()
        except TimeoutError:
            raise _busy() from None
        finally:
            reads.waiting -= 1
        try:
            yield
        finally:
            reads.permits.release()

    def in_thread(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Run `function(*arguments)` in a thread; call it within `reading`."""
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def log_files(self) -> LogFiles:
        """Return a view of the current commit log, for threads."""
        return LogFiles(self.broker.store)


class _Reads:
    """Permits for reading, and the number of requests that wait for one."""

    def __init__(self) -> None:
        self.permits = asyncio.Semaphore(MAX_READS)
        self.waiting = 0


def _busy() -> ApiError:
    return ApiError(503, "busy", f"{MAX_READS} other requests are reading old messages: try again")


def add_routes(app: web.Application, api: Api, routes: tuple[Route, ...]) -> None:
    """Add the routes to the application."""
    api.routes = routes
    app.on_cleanup.append(api.close)
    owners: dict[str, Any] = {}
    for route in routes:
        if route.owner is None:
            handler = _handler(api, route)
        else:
            if route.owner not in owners:
                owners[route.owner] = owner = _made(route, api.server)
                if hasattr(owner, "close"):
                    app.on_cleanup.append(owner.close)
            handler = _method_handler(api, route, getattr(owners[route.owner], route.handle.__name__))
        if route.of_master:
            handler = _of_master(api, handler)
        if route.method == "GET":
            app.router.add_get(route.path, handler)  # and HEAD
        else:
            app.router.add_route(route.method, route.path, handler)


def _made(route: Route, server: "BrokerServer") -> Any:
    return getattr(sys.modules[route.handle.__module__], str(route.owner))(server)


def _handler(api: Api, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            caller = caller_of(request)
            _charge(api, caller)
            arguments: list[Any] = []
            if route.query is not None:
                arguments.append(parameters_of(request, route.query))
            route.needs.check(caller, arguments[0] if arguments else None)
            if route.body is not None:
                arguments.append(await _json(request, route.body))
            answer = await route.handle(api.of(caller), *arguments)
        except ApiError as error:
            return error_response(error.status, error.code, error.message)
        return json_response(answer, route.status)

    return handle


def _method_handler(
    api: Api, route: Route, method: Callable[[web.Request], Awaitable[object]]
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            if not route.needs.is_open:
                if not route.receives_body:  # a send is counted as one
                    _charge(api, caller_of(request))
                await _check_method(request, route)
            answer = await method(request)
        except ApiError as error:
            return error_response(error.status, error.code, error.message)
        return answer if isinstance(answer, web.StreamResponse) else json_response(answer, route.status)

    return handle


def _charge(api: Api, caller: Caller) -> None:
    """Count a request for the quotas of its account. ApiError 429 beyond one."""
    access = api.broker.access
    if caller.account is None or access is None:
        return
    try:
        access.usages.count(caller.account, access.rules.accounts, _ANY_CODE)
    except RequestError as error:
        raise ApiError(429, "quota_exceeded", error.remark) from None


async def _check_method(request: web.Request, route: Route) -> None:
    """Check the needs of a route whose handler receives the request. Raises ApiError 403."""
    named: object = SimpleNamespace(**request.match_info)
    if route.needs.in_body is not None:
        try:
            named = decode_json(await request.read(), route.needs.in_body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return  # the handler rejects it with a better message
    route.needs.check(caller_of(request), named)


def _of_master(
    api: Api, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        if api.broker.following is not None:
            return error_response(409, "replica", api.broker.replica_refusal)
        return await handler(request)

    return handle


def parameters_of(request: web.Request, kind: type[Q]) -> Q:
    """Return the parameters in the path and query string of a request. ApiError if one of them is invalid."""
    values: dict[str, str] = dict(request.match_info)
    for name, value in request.query.items():
        if name in values:
            raise ApiError(400, "bad_request", f"duplicate parameter {name[:64]!r}: give it once")
        values[name] = value
    return parsed_query(values, kind)


def parsed_query(values: dict[str, str], kind: type[Q]) -> Q:
    """Return parameters that were sent as text. ApiError if one of them is invalid."""
    try:
        converted = msgspec.convert(values, kind, strict=False)
        for field in msgspec.structs.fields(kind):
            if field.encode_name in values and getattr(converted, field.name) is None:
                raise msgspec.ValidationError(f"{field.encode_name} has no value: omit it")
        return converted
    except msgspec.ValidationError as error:
        names = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
        raise ApiError(400, "bad_request", f"{error}; valid parameters: {names}") from None


async def _json(request: web.Request, kind: type[msgspec.Struct]) -> msgspec.Struct:
    try:
        return decode_json(await request.read(), kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        names = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
        raise ApiError(400, "bad_request", f"{error}: send a JSON object with {names}") from None
