"""Table of all HTTP routes of a broker, from which the OpenAPI description is generated."""

from typing import Final

from delaymq.api_types.accounts import Accounts, SessionEnded, SessionState, SignIn
from delaymq.api_types.audit import AuditLines
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
from delaymq.api_types.delay_changes import Change, ChangeBody, DescribedChangeBody
from delaymq.api_types.delay_settings import (
    AccountDelays,
    AccountDelaySettings,
    DelaySettings,
    TopicDelays,
    TopicDelaySettings,
)
from delaymq.api_types.forecast import Forecast
from delaymq.api_types.groups import GroupDetails, Groups
from delaymq.api_types.messages import MessageDetails, Messages
from delaymq.api_types.pending import Pending, PendingMessages
from delaymq.api_types.replication import Detachable, DetachBody, EpochBody, PlainSlaves, Replication, SwitchoverBody
from delaymq.api_types.sends import DescribedSendBody, Sent
from delaymq.api_types.store import Files, PinBody, PinHeld, PinReleased, Positions, Starts, Store
from delaymq.api_types.topics import TopicDetails, Topics
from delaymq.api_types.totals import Totals
from delaymq.server.api import (
    accounts,
    audit,
    cluster,
    config,
    delay_settings,
    groups,
    log_level,
    openapi,
    replication,
    topics,
    totals,
)
from delaymq.server.api.broker import BrokerHttp
from delaymq.server.api.delay import DelayHttp
from delaymq.server.api.delay_changes import DelayChangesHttp
from delaymq.server.api.messages import dead_letters, forecast, history, pending, pending_list, search
from delaymq.server.api.messages.send import SendHttp, SendQuery
from delaymq.server.api.offsets import OffsetsHttp
from delaymq.server.api.routing import Route, get, post, put
from delaymq.server.api.sessions.endpoints import SessionHttp, SessionQuery
from delaymq.server.api.store.endpoints import SegmentQuery, StartsQuery, StoreHttp
from delaymq.server.api.store.pins import PinQuery, PinsHttp
from delaymq.server.http.sign_in.needs import (
    ACCOUNT,
    LISTED,
    LISTED_IF_NAMED,
    METRICS,
    OPEN,
    RETURNED,
    SEEN_GROUP,
    SEEN_IF_NAMED,
    SEEN_TOPIC,
    SENT,
    TO_ADMINISTER,
    TO_OPERATE,
    TO_READ,
    VIEWED_RECORD,
    VIEWED_TOPIC,
    changed_in,
)

ROUTES: Final[tuple[Route, ...]] = (
    # Probes and metrics
    get("/livez", "Liveness: 503 if only a restart helps", BrokerHttp.alive, Alive, needs=OPEN, refusals=(503,)),
    get("/readyz", "Readiness, with the reasons if not ready", BrokerHttp.ready, Ready, needs=OPEN, refusals=(503,)),
    get(
        "/metrics", "Metrics in Prometheus' text format", BrokerHttp.metrics, None, needs=METRICS, content="text/plain"
    ),
    get(
        "/api/v1/openapi.json",
        "This description",
        openapi.openapi,
        dict,
        needs=ACCOUNT,
    ),
    # Sessions
    post(
        *("/api/v1/session", "Sign in with an account", SessionHttp.sign_in, SessionState),
        described=SignIn,
        needs=OPEN,
        refusals=(409, 429),
    ),
    get(
        *("/api/v1/session", "Rights of the caller, and when the session ends", SessionHttp.session, SessionState),
        query=SessionQuery,
        needs=ACCOUNT,
    ),
    Route("DELETE", "/api/v1/session", "Sign out", SessionHttp.sign_out, SessionEnded, needs=ACCOUNT),
    # The broker
    get(
        "/api/v1/cluster",
        "Brokers of the cluster, and this broker's NameServers",
        cluster.cluster,
        Cluster,
        needs=ACCOUNT,
    ),
    get(
        "/api/v1/totals",
        "Key figures, cheap enough to poll every two seconds",
        totals.totals,
        Totals,
        needs=TO_READ,
    ),
    get(
        "/api/v1/broker",
        "Identity, state, settings and delays of the broker",
        BrokerHttp.about,
        About,
        needs=TO_READ,
    ),
    get(
        "/api/v1/config",
        "Settings and their origins",
        config.config,
        Settings,
        needs=TO_READ,
    ),
    get(
        "/api/v1/log-level",
        "Log levels",
        log_level.log_level,
        LogLevel,
        needs=TO_READ,
    ),
    put(
        *("/api/v1/log-level", "Set the log levels until the next restart"),
        *(log_level.set_log_level, LogLevel),
        body=log_level.LogLevelChange,
        described=LogLevelBody,
        needs=TO_OPERATE,
    ),
    get(
        *("/api/v1/accounts", "List accounts with their usage and quotas, sorted by name"),
        *(accounts.accounts, Accounts),
        query=accounts.AccountsQuery,
        needs=TO_ADMINISTER,
    ),
    get(
        "/api/v1/audit",
        "Audit log: changes and refused attempts",
        audit.audit,
        AuditLines,
        query=audit.AuditQuery,
        needs=TO_ADMINISTER,
    ),
    get(
        *("/api/v1/plain-slaves", "Replication to and from RocketMQ's brokers"),
        *(replication.plain_slaves, PlainSlaves),
        needs=TO_READ,
    ),
    get(
        "/api/v1/drain",
        "State of draining",
        BrokerHttp.drain,
        Drain,
        needs=TO_READ,
    ),
    post(
        "/api/v1/drain",
        "Start or end draining, which keeps producers away",
        BrokerHttp.set_drain,
        Drain,
        body=DrainChange,
        needs=TO_OPERATE,
    ),
    get(
        *("/api/v1/replication", "State of this member of a replicated group", replication.replication, Replication),
        refusals=(404,),
        needs=TO_READ,
    ),
    post(
        *("/api/v1/replication/switchover", "Let a replica in sync take over"),
        *(replication.switch_over, Replication),
        body=SwitchoverBody,
        status=202,
        refusals=(404, 409),
        needs=TO_ADMINISTER,
    ),
    post(
        *("/api/v1/replication/promote", "Let this replica take over, although messages may be lost"),
        *(replication.promote, Replication),
        body=EpochBody,
        status=202,
        refusals=(404, 409),
        needs=TO_ADMINISTER,
    ),
    post(
        *("/api/v1/replication/prepare-detach", "Record that this replica does not take over until it has caught up"),
        *(replication.prepare_detach, Detachable),
        body=EpochBody,
        refusals=(404, 409, 503),
        needs=TO_ADMINISTER,
    ),
    post(
        *("/api/v1/replication/detach", "Let this master wait no longer for a replica that recorded a note"),
        *(replication.detach, Replication),
        body=DetachBody,
        refusals=(404, 409),
        needs=TO_ADMINISTER,
    ),
    get(
        "/api/v1/remaining",
        "Messages that consumers would lose without this broker",
        BrokerHttp.remaining,
        Remaining,
        needs=TO_READ,
    ),
    post(
        *("/api/v1/decommission", "Decommission the broker: reject all writes"),
        *(BrokerHttp.decommission, Decommissioned),
        body=object,
        status=202,
        needs=TO_ADMINISTER,
    ),
    # Topics, groups, messages
    get(
        "/api/v1/topics",
        "List topics, sorted by name",
        topics.topics,
        Topics,
        query=topics.TopicsQuery,
        needs=LISTED,
    ),
    get(
        *("/api/v1/topics/{topic}", "One topic with its queues and groups", topics.topic, TopicDetails),
        query=topics.TopicQuery,
        refusals=(404,),
        needs=SEEN_TOPIC,
    ),
    post(
        *("/api/v1/topics/{topic}/messages", "Send a message, to be delivered now or later", SendHttp.send, Sent),
        query=SendQuery,
        body=DescribedSendBody,
        receives_body=True,
        refusals=(404, 409),
        of_master=True,
        needs=SENT,
    ),
    get(
        "/api/v1/groups",
        "List consumer groups, sorted by name",
        groups.groups,
        Groups,
        query=groups.GroupsQuery,
        needs=LISTED,
    ),
    get(
        *("/api/v1/groups/{group}", "One consumer group with its members and progress", groups.group, GroupDetails),
        query=groups.GroupQuery,
        refusals=(404,),
        needs=SEEN_GROUP,
    ),
    get(
        *("/api/v1/messages", "Find messages of a topic by key or store time", search.messages, Messages),
        query=search.MessagesQuery,
        refusals=(404,),
        needs=VIEWED_TOPIC,
    ),
    get(
        *("/api/v1/messages/{id}", "One message with its body and history", history.message, MessageDetails),
        query=history.MessageQuery,
        refusals=(404,),
        needs=VIEWED_RECORD,
    ),
    post(
        *("/api/v1/deadletters/{group}/resend", "Resend dead letters to their group"),
        *(dead_letters.resend_dead_letters, Resends),
        query=dead_letters.ResendQuery,
        body=ResendBody,
        refusals=(404, 409),
        of_master=True,
        needs=RETURNED,
    ),
    post(
        *("/api/v1/offsets/forget", "Discard unreadable consumer offsets"),
        *(OffsetsHttp.forget, OffsetsForgotten),
        body=object,
        refusals=(409, 503),
        of_master=True,
        needs=TO_ADMINISTER,
    ),
    # Delays
    get(
        "/api/v1/delay",
        "Delay levels: pending messages, positions, lateness",
        BrokerHttp.delay,
        Delay,
        needs=TO_READ,
    ),
    get(
        *("/api/v1/delay/pending", "Count pending messages by level, topic or due time", pending.pending, Pending),
        query=pending.PendingQuery,
        needs=SEEN_IF_NAMED,
    ),
    get(
        *("/api/v1/delay/pending/messages", "List pending messages, sorted by due time"),
        *(pending_list.pending_messages, PendingMessages),
        query=pending_list.ListQuery,
        needs=LISTED_IF_NAMED,
    ),
    get(
        *("/api/v1/delay/forecast", "Count the messages that will be due, by hour, day and topic"),
        *(forecast.forecast, Forecast),
        query=forecast.ForecastQuery,
        needs=SEEN_IF_NAMED,
    ),
    post(
        *("/api/v1/delay/changes", "Change a pending message or those of a group, pause a group or topic"),
        *(DelayChangesHttp.change, Change),
        body=DescribedChangeBody,
        refusals=(404, 409),
        of_master=True,
        needs=changed_in(ChangeBody),
    ),
    get(
        *("/api/v1/delay/settings", "Delay settings of topics and accounts"),
        *(delay_settings.delay_settings, DelaySettings),
        query=delay_settings.DelaySettingsQuery,
        needs=TO_READ,
    ),
    get(
        *("/api/v1/delay/settings/topics/{topic}", "Delay settings of a topic"),
        *(delay_settings.topic_settings, TopicDelays),
        query=delay_settings.TopicQuery,
        refusals=(404,),
        needs=SEEN_TOPIC,
    ),
    put(
        *("/api/v1/delay/settings/topics/{topic}", "Replace the delay settings of a topic"),
        *(delay_settings.set_topic_settings, TopicDelays),
        query=delay_settings.TopicQuery,
        body=TopicDelaySettings,
        refusals=(404, 409),
        of_master=True,
        needs=TO_ADMINISTER,
    ),
    get(
        *("/api/v1/delay/settings/accounts/{account}", "Delay settings of an account"),
        *(delay_settings.account_settings, AccountDelays),
        query=delay_settings.AccountQuery,
        needs=TO_READ,
    ),
    put(
        *("/api/v1/delay/settings/accounts/{account}", "Replace the delay settings of an account"),
        *(delay_settings.set_account_settings, AccountDelays),
        query=delay_settings.AccountQuery,
        body=AccountDelaySettings,
        refusals=(409,),
        of_master=True,
        needs=TO_ADMINISTER,
    ),
    post(
        *("/api/v1/delay/pause", "Pause deliveries until they are resumed", DelayHttp.pause, DeliveryState),
        body=object,
        status=202,
        refusals=(409,),
        of_master=True,
        needs=TO_OPERATE,
    ),
    post(
        *(
            "/api/v1/delay/resume",
            "Resume deliveries, with a policy for overdue messages",
            DelayHttp.resume,
            DeliveryState,
        ),
        body=Resume,
        status=202,
        refusals=(409,),
        of_master=True,
        needs=TO_OPERATE,
    ),
    # The store, for remote readers
    get(
        "/api/v1/store",
        "Segments and readable range of the commit log",
        StoreHttp.store,
        Store,
        needs=TO_ADMINISTER,
    ),
    get(
        "/api/v1/store/positions",
        "Positions of consumers, delay levels and queues",
        StoreHttp.positions,
        Positions,
        needs=TO_ADMINISTER,
    ),
    get(
        "/api/v1/store/files",
        "Contents of the small files, each consistent in itself",
        StoreHttp.files,
        Files,
        needs=TO_ADMINISTER,
    ),
    get(
        *("/api/v1/store/segments/{name}", "Bytes of a segment, or a range of them", StoreHttp.segment, None),
        query=SegmentQuery,
        content="application/octet-stream",
        refusals=(404, 416),
        needs=TO_ADMINISTER,
    ),
    get(
        *(
            "/api/v1/store/segments/{name}/starts",
            "Physical offsets at which records of a segment start",
            StoreHttp.starts,
            Starts,
        ),
        query=StartsQuery,
        refusals=(404,),
        needs=TO_ADMINISTER,
    ),
    post(
        *("/api/v1/store/pins", "Pin the log against deletion, for a lease", PinsHttp.hold, PinHeld),
        body=PinBody,
        status=201,
        refusals=(409, 429),
        needs=TO_ADMINISTER,
    ),
    Route(
        *("DELETE", "/api/v1/store/pins/{holder}", "Release a pin", PinsHttp.release, PinReleased),
        query=PinQuery,
        refusals=(404,),
        needs=TO_ADMINISTER,
    ),
)
