"""What a broker answers over HTTP, all of it: a row a request. The description (OpenAPI) is made of this table."""

from typing import Final

from delaymq.server import (
    api_cluster,
    api_deadletters,
    api_groups,
    api_life,
    api_messages,
    api_openapi,
    api_pending,
    api_topics,
    api_totals,
    config_http,
    log_level_http,
)
from delaymq.server import api_described as forms
from delaymq.server.api_broker import BrokerHttp
from delaymq.server.api_route import Route, get, post, put
from delaymq.server.delay_http import DelayHttp
from delaymq.server.store_http import StoreHttp
from delaymq.server.store_pins import PinsHttp

ROUTES: Final[tuple[Route, ...]] = (
    # Probes and metrics
    get("/livez", "Whether the event loop runs", BrokerHttp.alive, forms.Alive, is_open=True),
    get(
        "/readyz", "Whether it is ready, and if not, why", BrokerHttp.ready, forms.Ready, is_open=True, refusals=(503,)
    ),
    get("/metrics", "Prometheus' text format", BrokerHttp.metrics, None, is_open=True, content="text/plain"),
    get("/api/v1/openapi.json", "This description", api_openapi.openapi, dict),
    # The broker
    get("/api/v1/cluster", "Brokers of the cluster, and NameServers", api_cluster.cluster, api_cluster.Cluster),
    get("/api/v1/totals", "A few figures, light enough for every two seconds", api_totals.totals, api_totals.Totals),
    get("/api/v1/broker", "What it is, how it stands, settings, delays", BrokerHttp.about, forms.About),
    get("/api/v1/config", "Settings, and where they are from", config_http.config, config_http.Settings),
    get("/api/v1/log-level", "What is logged", log_level_http.log_level, log_level_http.LogLevel),
    put(
        *("/api/v1/log-level", "Change what is logged, until the restart"),
        *(log_level_http.set_log_level, log_level_http.LogLevel),
        body=log_level_http.LogLevelChange,
        described=forms.LogLevelBody,
    ),
    get("/api/v1/drain", "Whether producers are held off", BrokerHttp.drain, forms.Drain),
    post(
        "/api/v1/drain", "Hold producers off, or no longer", BrokerHttp.set_drain, forms.Drain, body=forms.DrainChange
    ),
    get("/api/v1/remaining", "What consumers would miss without it", BrokerHttp.remaining, forms.Remaining),
    post(
        *("/api/v1/decommission", "Take it out of service: no more writes"),
        *(BrokerHttp.decommission, forms.Decommissioned),
        body=object,
        status=202,
    ),
    # Topics, groups, messages
    get("/api/v1/topics", "Topics by name", api_topics.topics, api_topics.Topics, query=api_topics.TopicsQuery),
    get(
        *("/api/v1/topics/{topic}", "One topic with its queues", api_topics.topic, api_topics.TopicDetails),
        query=api_topics.TopicQuery,
        refusals=(404,),
    ),
    get("/api/v1/groups", "Groups by name", api_groups.groups, api_groups.Groups, query=api_groups.GroupsQuery),
    get(
        *("/api/v1/groups/{group}", "One group: members, progress", api_groups.group, api_groups.GroupDetails),
        query=api_groups.GroupQuery,
        refusals=(404,),
    ),
    get(
        *("/api/v1/messages", "Messages of a topic by key or store time", api_messages.messages, api_messages.Messages),
        query=api_messages.MessagesQuery,
        refusals=(404,),
    ),
    get(
        *("/api/v1/messages/{id}", "One message: body, life", api_life.message, api_life.MessageDetails),
        query=api_life.MessageQuery,
        refusals=(404,),
    ),
    post(
        *("/api/v1/deadletters/{group}/resend", "Send dead letters to their group again"),
        *(api_deadletters.resend_dead_letters, api_deadletters.Resends),
        query=api_deadletters.ResendQuery,
        body=api_deadletters.ResendBody,
        refusals=(404,),
    ),
    # Delays
    get("/api/v1/delay", "Each level: positions, lateness", BrokerHttp.delay, forms.Delay),
    get(
        *("/api/v1/delay/pending", "What waits, by level, topic or due time", api_pending.pending, api_pending.Pending),
        query=api_pending.PendingQuery,
    ),
    get(
        *("/api/v1/delay/pending/messages", "What is due next", api_pending.next_messages, api_pending.NextMessages),
        query=api_pending.NextQuery,
    ),
    post(
        *("/api/v1/delay/pause", "Hand nothing over until somebody resumes", DelayHttp.pause, forms.Held),
        body=object,
        status=202,
        refusals=(409,),
    ),
    post(
        *("/api/v1/delay/resume", "Hand over again; what becomes of overdue ones", DelayHttp.resume, forms.Held),
        body=forms.Resume,
        status=202,
        refusals=(409,),
    ),
    # The store, for those who read it from elsewhere
    get("/api/v1/store", "What of the log may be read", StoreHttp.store, forms.Store),
    get("/api/v1/store/positions", "How far consumers and delays are", StoreHttp.positions, forms.Positions),
    get("/api/v1/store/files", "The small files, of one moment", StoreHttp.files, forms.Files),
    get(
        *("/api/v1/store/segments/{name}", "A segment's bytes; a Range of them too", StoreHttp.segment, None),
        query=forms.SegmentQuery,
        content="application/octet-stream",
        refusals=(404, 416),
    ),
    get(
        *("/api/v1/store/segments/{name}/starts", "Where its records begin", StoreHttp.starts, forms.Starts),
        query=forms.StartsQuery,
        refusals=(404,),
    ),
    post(
        *("/api/v1/store/pins", "Keep the log from deletion, for a while", PinsHttp.hold, forms.PinHeld),
        body=forms.PinBody,
        status=201,
        refusals=(409, 429),
    ),
    Route(
        *("DELETE", "/api/v1/store/pins/{holder}", "End a pin", PinsHttp.release, forms.PinReleased),
        query=forms.PinQuery,
        refusals=(404,),
    ),
)
