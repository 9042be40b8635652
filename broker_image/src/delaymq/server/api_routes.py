"""What a broker answers over HTTP, all of it: a row a request. The description (OpenAPI) is made of this table."""

from typing import Final

from delaymq.server import api_cluster, api_groups, api_life, api_messages, api_pending, api_topics
from delaymq.server.api_route import Route

ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET",
        path="/api/v1/cluster",
        summary="Brokers of the cluster, and the NameServers of this one",
        handle=api_cluster.cluster,
        answer=api_cluster.Cluster,
    ),
    Route(
        method="GET",
        path="/api/v1/topics",
        summary="Topics, a page by name",
        handle=api_topics.topics,
        query=api_topics.TopicsQuery,
        answer=api_topics.Topics,
    ),
    Route(
        method="GET",
        path="/api/v1/topics/{topic}",
        summary="One topic with its queues",
        handle=api_topics.topic,
        query=api_topics.TopicQuery,
        answer=api_topics.TopicDetails,
        refusals=(404,),
    ),
    Route(
        method="GET",
        path="/api/v1/groups",
        summary="Consumer groups, a page by name",
        handle=api_groups.groups,
        query=api_groups.GroupsQuery,
        answer=api_groups.Groups,
    ),
    Route(
        method="GET",
        path="/api/v1/groups/{group}",
        summary="One group with its members and its progress",
        handle=api_groups.group,
        query=api_groups.GroupQuery,
        answer=api_groups.GroupDetails,
        refusals=(404,),
    ),
    Route(
        method="GET",
        path="/api/v1/messages",
        summary="Messages of a topic by key, unique id or store time, the newest first",
        handle=api_messages.messages,
        query=api_messages.MessagesQuery,
        answer=api_messages.Messages,
        refusals=(404,),
    ),
    Route(
        method="GET",
        path="/api/v1/messages/{id}",
        summary="One message with its body and its life",
        handle=api_life.message,
        query=api_life.MessageQuery,
        answer=api_life.MessageDetails,
        refusals=(404,),
    ),
    Route(
        method="GET",
        path="/api/v1/delay/pending",
        summary="What waits, by level, topic or due time",
        handle=api_pending.pending,
        query=api_pending.PendingQuery,
        answer=api_pending.Pending,
    ),
    Route(
        method="GET",
        path="/api/v1/delay/pending/messages",
        summary="The messages that are due next",
        handle=api_pending.next_messages,
        query=api_pending.NextQuery,
        answer=api_pending.NextMessages,
    ),
)
