"""Cache of a client's routes, requested on demand and refreshed periodically."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from delaymq.client.core.background import Background
from delaymq.client.core.name_servers import NameServers
from delaymq.client.core.routes import Route, route_of, route_of_new_topic
from delaymq.client.core.shared_calls import SharedCalls
from delaymq.client.errors import (
    AnswerTimeoutError,
    ClientError,
    ClosedError,
    NoRouteError,
    RefusedError,
    UnreachableError,
    reading_answer,
)
from delaymq.message import names
from delaymq.protocol.bodies import TopicRoute
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import request_command
from delaymq.protocol.headers import GetRouteInfoRequestHeader

_logger = logging.getLogger(__name__)


class RouteCache:
    """Routes by topic. A topic whose route disappears keeps the last one, since a restarted NameServer has none for
    a while.
    """

    def __init__(self, name_servers: NameServers, background: Background) -> None:
        self._name_servers = name_servers
        self._background = background
        self._routes: dict[str, Route] = {}
        self._noted: dict[str, str] = {}
        self._refreshing: set[str] = set()
        self._calls: SharedCalls[str, TopicRoute] = SharedCalls()

    def known(self, topic: str) -> Route | None:
        """Return the last known route."""
        return self._routes.get(topic)

    def addresses(self, topics: Iterable[str]) -> set[str]:
        """Return the addresses of all brokers of `topics`, masters and slaves, in known routes."""
        routes = [route for topic in topics if (route := self._routes.get(topic)) is not None]
        return {address for route in routes for by_id in route.brokers.values() for address in by_id.values()}

    def note_broker(self, name: str, address: str) -> None:
        """Record the address of a broker reported by a NameServer outside routes."""
        self._noted[address] = name

    def names_at(self, address: str) -> set[str]:
        """Return the names of the brokers that NameServers have reported at an address."""
        found = {
            name
            for route in self._routes.values()
            for name, by_id in route.brokers.items()
            if address in by_id.values()
        }
        return found | {self._noted[address]} if address in self._noted else found

    async def route(self, topic: str, *, fresh: bool = False) -> Route:
        """Return the topic's route. Raises NoRouteError if it has none, ClientError if no NameServer responds."""
        known = self._routes.get(topic)
        if known is not None and not fresh:
            return known
        route = route_of(topic, await self._load_shared(topic))
        self._routes[topic] = route
        return route

    async def route_to_send(self, topic: str, new_topic_queues: int) -> Route:
        """Return `route`; for an unknown topic, the route that it gets when a broker creates it at the first send."""
        try:
            return await self.route(topic)
        except NoRouteError:
            template = await self._load_shared(names.AUTO_CREATE_TOPIC, shown=topic)
            return route_of_new_topic(topic, template, new_topic_queues)

    def refresh_soon(self, topic: str) -> None:
        """Refresh the topic's route in the background after a failure with the known one."""
        if topic not in self._refreshing:
            self._refreshing.add(topic)
            self._background.spawn(self._refresh(topic))

    async def refresh_all(self, topics: Iterable[str]) -> bool:
        """Refresh the routes of `topics` and all known ones; return whether one has changed. Failures are logged."""
        changed = False
        for topic in sorted({*topics, *self._routes}):
            before = self._routes.get(topic)
            try:
                changed |= before != await self.route(topic, fresh=True)
            except NoRouteError:
                continue  # the last known one is the best guess
            except (UnreachableError, AnswerTimeoutError, ClosedError) as error:
                _logger.warning("routes could not be refreshed: %s", error)
                break
            except ClientError as error:
                _logger.warning("the route of %s could not be refreshed: %s", topic, error)
        return changed

    async def close(self) -> None:
        """Cancel current calls and reject new ones."""
        await self._calls.close()

    async def _refresh(self, topic: str) -> None:
        try:
            await self.route(topic, fresh=True)
        except ClientError as error:
            _logger.debug("the route of %s could not be refreshed: %s", topic, error)
        finally:
            self._refreshing.discard(topic)

    async def _load_shared(self, topic: str, shown: str = "") -> TopicRoute:
        # Concurrent sends share one request, which the cancellation of one of them does not end.
        try:
            return await self._calls.call(topic, lambda: self._load(topic))
        except NoRouteError as error:
            raise NoRouteError(shown or topic) from error

    async def _load(self, topic: str) -> TopicRoute:
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        try:
            # A restarted NameServer has no topics until the brokers have registered again.
            command = request_command(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.to_fields())
            answer = await self._name_servers.request(command, unless_all=ResponseCode.TOPIC_NOT_EXIST)
            with reading_answer("the NameServer"):
                return TopicRoute.decode(answer.body)
        except RefusedError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                raise NoRouteError(topic) from error
            raise
