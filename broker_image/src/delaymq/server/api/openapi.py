"""GET /api/v1/openapi.json: OpenAPI description, generated from the routes and their types."""

import http
from functools import cache
from typing import Any, Final

import msgspec

from delaymq import __version__
from delaymq.api_types.base import Answer, FrozenAnswer, Refusal
from delaymq.server.api.routing import Api, Query, Route
from delaymq.server.http.responses import JSON

_TEMPLATE: Final = "#/components/schemas/{name}"
_ABOUT: Final = (
    "HTTP API of a DelayMQ broker. Times are in ms since the epoch. Lists are paged by name: pass `next` of a"
    " response as `after` of the next request. All errors have the same format."
)
_ALWAYS: Final = {
    400: "invalid parameter or body; the message states the reason",
    401: "the token is missing or wrong, or the session has ended",
    403: "the account lacks a role or permission; or no token is configured for this address, or the Host or Origin"
    " header is not allowed",
    408: "the body did not arrive in time",
    413: "the body is too large",
    415: "the content type is not JSON",
    429: "the account has exceeded a quota, or too many sign-ins have failed",
    503: "busy or temporarily unavailable; code `shortage`: out of descriptors, memory or threads",
}
_RETRY_AFTER: Final = {
    "Retry-After": {"description": "seconds after which the request may be repeated", "schema": {"type": "integer"}}
}


async def openapi(api: Api) -> msgspec.Raw:
    """Return the OpenAPI description."""
    return _encoded(api.routes)


@cache
def _encoded(routes: tuple[Route, ...]) -> msgspec.Raw:
    """Encode the description, once, because it takes the loop longer than any other response."""
    return msgspec.Raw(msgspec.json.encode(description(routes)))


def description(routes: tuple[Route, ...]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of these routes."""
    types = [each for route in routes for each in (route.answer, _body(route)) if each not in (None, dict, object)]
    types += [Refusal]
    schemas, components = msgspec.json.schema_components(types, ref_template=_TEMPLATE)
    for name, kind in (_forms(Answer) | _forms(FrozenAnswer)).items():
        if name in components and not kind.__struct_config__.omit_defaults:
            _always_sent(components[name])
    by_type = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {"title": "DelayMQ broker", "version": __version__, "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "httpToken, or the token of a session",
                },
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "delaymq-session-…",
                    "description": "session of a browser; over TLS, the name begins with __Host-",
                },
            },
        },
    }


def _forms(base: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    """Return all response types by name."""
    found: dict[str, type[msgspec.Struct]] = {}
    for kind in base.__subclasses__():
        found |= {kind.__name__: kind} | _forms(kind)
    return found


def _always_sent(schema: dict[str, Any]) -> None:
    """Mark all members as required: defaults of responses are for readers, and brokers send every member."""
    properties = schema["properties"]
    for each in properties.values():
        each.pop("default", None)
    schema["required"] = list(properties)


def _operation(route: Route, by_type: dict[int, dict[str, Any]]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"} if route.answer is dict else by_type.get(id(route.answer), {})
    answers: dict[int, dict[str, Any]] = {}
    answers[route.status] = {"description": "success", "content": {route.content: {"schema": schema}}}
    for status in sorted({*_ALWAYS, *route.refusals} - ({401, 403} if route.needs.is_open else set())):
        answers[status] = {
            "description": _ALWAYS.get(status, http.HTTPStatus(status).phrase),
            "content": {JSON: {"schema": by_type[id(Refusal)]}},
        }
        if status == 503:
            answers[status]["headers"] = _RETRY_AFTER
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "description": f"With access control, this needs {route.needs.text}.",
        "parameters": _parameters(route.query, route.path) if route.query is not None else [],
        "responses": {str(status): answer for status, answer in answers.items()},
        # On loopback, a broker without a token requires none.
        "security": [] if route.needs.is_open else [{"token": []}, {"session": []}, {}],
    }
    if (body := _body(route)) is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": by_type.get(id(body), {})}}}
    return operation


def _body(route: Route) -> Any:
    return route.described or route.body


def _operation_id(route: Route) -> str:
    words = [word.strip("{}") for word in route.path.removeprefix("/api/v1").split("/") if word]
    return "-".join([route.method.lower(), *words])


def _parameters(kind: type[Query], path: str) -> list[dict[str, Any]]:
    (_,), components = msgspec.json.schema_components([kind], ref_template=_TEMPLATE)
    properties = components[kind.__name__]["properties"]
    required = components[kind.__name__].get("required", [])
    return [
        {
            "name": name,
            "in": "path" if f"{{{name}}}" in path else "query",
            "required": name in required,
            "schema": _plain(schema),
        }
        for name, schema in properties.items()
    ]


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove null from a parameter's schema: query strings have no null."""
    choices = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    plain = choices[0] if len(choices) == 1 else schema
    return {name: value for name, value in plain.items() if not (name == "default" and value is None)}
