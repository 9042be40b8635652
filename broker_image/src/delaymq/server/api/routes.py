"""What a broker answers over HTTP, all of it: a row a request. The description (OpenAPI) is made of this table."""

from typing import Final

from delaymq.api_types.broker import (
    About,
    Alive,
    Decommissioned,
    Drain,
    DrainChange,
    OffsetsForgotten,
    Ready,
    Remaining,
)
from delaymq.api_types.cluster import Cluster
from delaymq.api_types.config import LogLevel, LogLevelBody, Settings
from delaymq.api_types.dead_letters import ResendBody, Resends
from delaymq.api_types.delay import Delay, DeliveryState, Resume
from delaymq.api_types.groups import GroupDetails, Groups
from delaymq.api_types.messages import MessageDetails, Messages
from delaymq.api_types.pending import NextMessages, Pending
from delaymq.api_types.store import Files, PinBody, PinHeld, PinReleased, Positions, Starts, Store
from delaymq.api_types.topics import TopicDetails, Topics
from delaymq.api_types.totals import Totals
from delaymq.server.api import cluster, config, groups, log_level, openapi, topics, totals
from delaymq.server.api.broker import BrokerHttp
from delaymq.server.api.delay import DelayHttp
from delaymq.server.api.messages import dead_letters, history, pending, search
from delaymq.server.api.offsets import OffsetsHttp
from delaymq.server.api.routing import Route, get, post, put
from delaymq.server.api.store.endpoints import SegmentQuery, StartsQuery, StoreHttp
from delaymq.server.api.store.pins import PinQuery, PinsHttp

ROUTES: Final[tuple[Route, ...]] = (
    # Probes and metrics
    get("/livez", "503 when only a restart helps", BrokerHttp.alive, Alive, is_open=True, refusals=(503,)),
    get("/readyz", "Whether it is ready, and if not, why", BrokerHttp.ready, Ready, is_open=True, refusals=(503,)),
    get("/metrics", "Prometheus' text format", BrokerHttp.metrics, None, is_open=True, content="text/plain"),
    get("/api/v1/openapi.json", "This description", openapi.openapi, dict),
    # The broker
    get("/api/v1/cluster", "Brokers of the cluster, and NameServers", cluster.cluster, Cluster),
    get("/api/v1/totals", "A few figures, light enough for every two seconds", totals.totals, Totals),
    get("/api/v1/broker", "What it is, how it stands, settings, delays", BrokerHttp.about, About),
    get("/api/v1/config", "Settings, and where they are from", config.config, Settings),
    get("/api/v1/log-level", "What is logged", log_level.log_level, LogLevel),
    put(
        *("/api/v1/log-level", "Change what is logged, until the restart"),
        *(log_level.set_log_level, LogLevel),
        body=log_level.LogLevelChange,
        described=LogLevelBody,
    ),
    get("/api/v1/drain", "Whether producers are held off", BrokerHttp.drain, Drain),
    post("/api/v1/drain", "Hold producers off, or no longer", BrokerHttp.set_drain, Drain, body=DrainChange),
    get("/api/v1/remaining", "What consumers would miss without it", BrokerHttp.remaining, Remaining),
    post(
        *("/api/v1/decommission", "Take it out of service: no more writes"),
        *(BrokerHttp.decommission, Decommissioned),
        body=object,
        status=202,
    ),
    # Topics, groups, messages
    get("/api/v1/topics", "Topics by name", topics.topics, Topics, query=topics.TopicsQuery),
    get(
        *("/api/v1/topics/{topic}", "One topic with its queues", topics.topic, TopicDetails),
        query=topics.TopicQuery,
        refusals=(404,),
    ),
    get("/api/v1/groups", "Groups by name", groups.groups, Groups, query=groups.GroupsQuery),
    get(
        *("/api/v1/groups/{group}", "One group: members, progress", groups.group, GroupDetails),
        query=groups.GroupQuery,
        refusals=(404,),
    ),
    get(
        *("/api/v1/messages", "Messages of a topic by key or store time", search.messages, Messages),
        query=search.MessagesQuery,
        refusals=(404,),
    ),
    get(
        *("/api/v1/messages/{id}", "One message: body, life", history.message, MessageDetails),
        query=history.MessageQuery,
        refusals=(404,),
    ),
    post(
        *("/api/v1/deadletters/{group}/resend", "Send dead letters to their group again"),
        *(dead_letters.resend_dead_letters, Resends),
        query=dead_letters.ResendQuery,
        body=ResendBody,
        refusals=(404,),
    ),
    post(
        *("/api/v1/offsets/forget", "Give up consumer offsets that cannot be read"),
        *(OffsetsHttp.forget, OffsetsForgotten),
        body=object,
        refusals=(409, 503),
    ),
    # Delays
    get("/api/v1/delay", "Each level: positions, lateness", BrokerHttp.delay, Delay),
    get(
        *("/api/v1/delay/pending", "What waits, by level, topic or due time", pending.pending, Pending),
        query=pending.PendingQuery,
    ),
    get(
        *("/api/v1/delay/pending/messages", "What is due next", pending.next_messages, NextMessages),
        query=pending.NextQuery,
    ),
    post(
        *("/api/v1/delay/pause", "Hand nothing over until somebody resumes", DelayHttp.pause, DeliveryState),
        body=object,
        status=202,
        refusals=(409,),
    ),
    post(
        *("/api/v1/delay/resume", "Hand over again; what becomes of overdue ones", DelayHttp.resume, DeliveryState),
        body=Resume,
        status=202,
        refusals=(409,),
    ),
    # The store, for those who read it from elsewhere
    get("/api/v1/store", "What of the log may be read", StoreHttp.store, Store),
    get("/api/v1/store/positions", "How far consumers and delays are", StoreHttp.positions, Positions),
    get("/api/v1/store/files", "The small files, each of one moment", StoreHttp.files, Files),
    get(
        *("/api/v1/store/segments/{name}", "A segment's bytes; a Range of them too", StoreHttp.segment, None),
        query=SegmentQuery,
        content="application/octet-stream",
        refusals=(404, 416),
    ),
    get(
        *("/api/v1/store/segments/{name}/starts", "Where its records begin", StoreHttp.starts, Starts),
        query=StartsQuery,
        refusals=(404,),
    ),
    post(
        *("/api/v1/store/pins", "Keep the log from deletion, for a while", PinsHttp.hold, PinHeld),
        body=PinBody,
        status=201,
        refusals=(409, 429),
    ),
    Route(
        *("DELETE", "/api/v1/store/pins/{holder}", "End a pin", PinsHttp.release, PinReleased),
        query=PinQuery,
        refusals=(404,),
    ),
)
