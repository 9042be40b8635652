"""Push consumers of the tests of the client: quick, of one topic of the scripted broker."""

from delaymq.client import Client, ConsumeFrom, PushConsumer, PushConsumerOptions, ReceivedMessage

QUICK = PushConsumerOptions(
    consume_from=ConsumeFrom.FIRST, commit_interval_ms=20, close_timeout_ms=200, local_retry_ms=20, unsent_retry_ms=20
)


def subscribed(client: Client, handler: object, options: PushConsumerOptions = QUICK, tags: str = "*") -> PushConsumer:
    """A consumer of group G and topic T, not started."""
    consumer = PushConsumer(client, "G", handler, options)  # type: ignore[arg-type]
    consumer.subscribe("T", tags)
    return consumer


class Collected:
    """A handler that keeps what it gets."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]
