"""The asyncio client, for DelayMQ and for RocketMQ 4.9 brokers.

Here: a `Client` (connections, routes, heartbeats) and its members `Producer`, `PushConsumer`, `LitePullConsumer`,
`PullConsumer`, and `Admin`. Not here: sockets and frames (transport/, protocol/), and the broker's side. Invariants:
every wait has a limit; a cancelled call leaves nothing behind; an offset is committed only after all messages before
it have been consumed.

    async with Client("127.0.0.1:9876") as client, Producer(client) as producer:
        await producer.send(Message(topic="Greetings", body=b"hello"), delay="5s")
"""

from delaymq.client.admin import EARLIEST, LATEST, Admin, GroupMembers, QueueReset, ResetOutcome
from delaymq.client.admin.group_config import GroupConfig
from delaymq.client.admin.topic_config import TopicConfig
from delaymq.client.consumer.handlers.types import BatchHandler, Handler, Outcome, Retry, Suspend
from delaymq.client.consumer.lite_pull import LitePullConsumer
from delaymq.client.consumer.offset_store.file_offsets import OffsetsInUseError
from delaymq.client.consumer.pull import PullConsumer
from delaymq.client.consumer.push import BatchPushConsumer, PushConsumer
from delaymq.client.consumer.stats.consumer_stats import ConsumerStats, QueueStats, TopicStats
from delaymq.client.core.client import Client
from delaymq.client.core.queue_calls import PullResult, PullStatus
from delaymq.client.core.replies import reply_to
from delaymq.client.credentials import Credentials
from delaymq.client.errors import (
    AccessDeniedError,
    AnswerTimeoutError,
    BadAnswerError,
    ClientError,
    ClosedError,
    NoReplyError,
    NoRouteError,
    NoSuchDelayError,
    NotPendingError,
    RefusedError,
    SendError,
    UnreachableError,
)
from delaymq.client.messages import Message, ReceivedMessage, SendResult, SendStatus
from delaymq.client.options import (
    Allocation,
    ClientOptions,
    ConsumeFrom,
    LitePullOptions,
    MessageModel,
    ProducerOptions,
    PushConsumerOptions,
    TransactionOptions,
)
from delaymq.client.producer.pending import PendingCount, PendingList, PendingMessage
from delaymq.client.producer.producer import Producer
from delaymq.client.producer.scheduled import Changed, Scheduled
from delaymq.client.producer.transactions import (
    HalfMessage,
    LocalState,
    TransactionListener,
    TransactionProducer,
    TransactionResult,
)
from delaymq.client.sending.batches import split_batches
from delaymq.client.tls import TlsFilesError, TlsOptions
from delaymq.message.errors import IllegalMessageError
from delaymq.protocol.bodies import MessageQueue

__all__ = [
    "EARLIEST",
    "LATEST",
    "AccessDeniedError",
    "Admin",
    "Allocation",
    "AnswerTimeoutError",
    "BadAnswerError",
    "BatchHandler",
    "BatchPushConsumer",
    "Changed",
    "Client",
    "ClientError",
    "ClientOptions",
    "ClosedError",
    "ConsumeFrom",
    "ConsumerStats",
    "Credentials",
    "GroupConfig",
    "GroupMembers",
    "HalfMessage",
    "Handler",
    "IllegalMessageError",
    "LitePullConsumer",
    "LitePullOptions",
    "LocalState",
    "Message",
    "MessageModel",
    "MessageQueue",
    "NoReplyError",
    "NoRouteError",
    "NoSuchDelayError",
    "NotPendingError",
    "OffsetsInUseError",
    "Outcome",
    "PendingCount",
    "PendingList",
    "PendingMessage",
    "Producer",
    "ProducerOptions",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PushConsumerOptions",
    "QueueReset",
    "QueueStats",
    "ReceivedMessage",
    "RefusedError",
    "ResetOutcome",
    "Retry",
    "Scheduled",
    "SendError",
    "SendResult",
    "SendStatus",
    "Suspend",
    "TlsFilesError",
    "TlsOptions",
    "TopicConfig",
    "TopicStats",
    "TransactionListener",
    "TransactionOptions",
    "TransactionProducer",
    "TransactionResult",
    "UnreachableError",
    "reply_to",
    "split_batches",
]
