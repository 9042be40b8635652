"""An administrator's query with a one-line result: a message by its ID, a topic's route, its queues' offsets."""

import argparse
import asyncio
import sys

from delaymq.client import Admin, Client, ClientError, NoRouteError
from lines import client_options, parser, say


def arguments() -> argparse.Namespace:
    made = parser(__doc__)
    questions = made.add_subparsers(dest="question", required=True)
    view = questions.add_parser("view", help="queryMsgById: the record that an offset message id names")
    view.add_argument("message_id")
    route = questions.add_parser("route", help="addresses, queues and permissions by broker")
    route.add_argument("topic")
    stats = questions.add_parser("stats", help="messages by queue")
    stats.add_argument("topic")
    questions.add_parser("brokers", help="master's address by broker name")
    settings = questions.add_parser("settings", help="a running broker's settings")
    settings.add_argument("address")
    progress = questions.add_parser("progress", help="what a group has not consumed yet")
    progress.add_argument("group")
    return made.parse_args()


async def answer(admin: Admin, client: Client, options: argparse.Namespace) -> object:
    if options.question == "view":
        message = await admin.view_message(options.message_id)
        return {
            "topic": message.topic, "keys": list(message.keys), "body": message.body.decode(errors="replace").strip(),
            "properties": message.properties, "storedMs": message.store_timestamp_ms,
        }  # fmt: skip
    if options.question == "route":
        try:
            route = await client.route(options.topic, fresh=True)
        except NoRouteError:
            return None
        return {
            "addresses": {name: dict(by_id) for name, by_id in route.brokers.items()},
            "readable": sorted([queue.broker_name, queue.queue_id] for queue in route.readable),
            "writable": sorted([queue.broker_name, queue.queue_id] for queue in route.writable),
        }
    if options.question == "stats":
        stats = await admin.topic_stats(options.topic)
        return {f"{queue.broker_name}/{queue.queue_id}": [at.min_offset, at.max_offset] for queue, at in stats.items()}
    if options.question == "brokers":
        return await admin.masters()
    if options.question == "settings":
        return await admin.broker_config(options.address)
    found = await admin.consumer_progress(options.group)
    return sum(at.broker_offset - at.consumer_offset for at in found.values())


async def run(options: argparse.Namespace) -> None:
    async with asyncio.timeout(options.at_most_s), Client(options.name_servers, client_options(options)) as client:
        say("end", await answer(Admin(client), client, options))


def main() -> None:
    try:
        asyncio.run(run(arguments()))
    except (ClientError, ValueError, TimeoutError) as error:
        sys.exit(f"ask: {error or 'no answer in time'}")


if __name__ == "__main__":
    main()
