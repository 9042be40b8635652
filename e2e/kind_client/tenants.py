"""Compares what one tenant of a Broker can learn about another with what it can learn about nobody.

It creates what both tenants have. Then the second one sends every request code to the broker and to the NameServer, and
every GET to HTTP, with names of the first one, and with names that do not exist. The last line has the number of
requests, and the differences. --testing is the folder with delaymq_testing, which is not part of the image.
"""

import argparse
import asyncio
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from urllib.parse import quote, urlencode

import msgspec
from delaymq.broker.processors.table import PROCESSORS, PROCESSORS_OF_ACCESS
from delaymq.client import Admin, Client, ClientOptions, Credentials
from delaymq.namesrv.table import PROCESSORS as NAMESRV_PROCESSORS
from delaymq.protocol.command import Command
from delaymq.server.api.routes import ROUTES
from lines import parser, say

HTTP_TIMEOUT_S = 20.0
TIMES = re.compile(r'"(?:asOf|idleExpires|expires)Ms":\d+')
"""Values that differ between any two responses."""


def arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--testing", required=True)
    made.add_argument("--http-port", type=int, default=8080)
    for name in ("alpha", "bravo", "admin"):
        made.add_argument(f"--{name}", required=True, metavar="ACCESS_KEY:SECRET_KEY")
    return made.parse_args()


async def run(options: argparse.Namespace) -> None:
    sys.path.insert(0, options.testing)
    from delaymq_testing.accounts.two_tenants import ALPHA, BRAVO, BROKER, Signed, check_codes, nobody, settled

    secrets = {name: getattr(options, name).split(":", 1)[1] for name in (ALPHA, BRAVO)}
    access_key, _, secret_key = options.admin.partition(":")
    admin_options = ClientOptions(credentials=Credentials(access_key, secret_key))
    async with asyncio.timeout(options.at_most_s), Client(options.name_servers, admin_options) as client:
        broker = (await Admin(client).masters())[BROKER]
        namesrv = options.name_servers.split(";")[0]

        async def ask(address: str, command: Command) -> Command:
            return await client.request(address, command)

        async def connect(address: str, word: str) -> Signed:
            host, _, port = address.rpartition(":")
            return await Signed.connect(int(port), f"{word}-account", host=host, secret=secrets[word])

        both = {}
        for word in (ALPHA, BRAVO):
            both[word] = await settled(word, await connect(broker, word), partial(ask, broker), partial(ask, namesrv))
        requests: dict[str, int] = {}
        found: dict[str, object] = {}
        # First: later, records of the second tenant contain names of the first one that it has sent itself.
        slots, twins = both[ALPHA].slots, nobody(both[ALPHA])
        http = f"http://{broker.rpartition(':')[0]}:{options.http_port}"
        requests["http"], found["http"] = await asyncio.to_thread(check_http, http, secrets[BRAVO], slots, twins)
        for name, address, codes in (
            ("broker", broker, {*PROCESSORS, *PROCESSORS_OF_ACCESS}),
            ("namesrv", namesrv, {*NAMESRV_PROCESSORS}),
        ):
            asking = await connect(address, BRAVO)
            requests[name], found[name] = await check_codes(asking, both[ALPHA], both[BRAVO], codes)
    say("end", {"requests": requests, "found": found})


def check_http(
    base: str, secret: str, slots: Mapping[str, str], twins: Mapping[str, str]
) -> tuple[int, dict[str, str]]:
    """Return the number of requests, and the differences by path."""
    from delaymq_testing.accounts.two_tenants import ALPHA, BRAVO, NOBODY

    body = msgspec.json.encode({"accessKey": f"{BRAVO}-account", "secretKey": secret, "bearer": True})
    status, text = answer(f"{base}/api/v1/session", body=body)
    if status != HTTPStatus.OK:
        raise ValueError(f"cannot sign in to {base}: {text}")
    token = msgspec.json.decode(text)["token"]
    requests, found = 0, {}
    for route in ROUTES:
        if route.method != "GET" or not route.path.startswith("/api/"):
            continue
        texts = []
        for values in (slots, twins):
            status, text = answer(base + path_of(route.path, route.query, values), token=token)
            requests += 1
            text = TIMES.sub("", f"{status} {text}")
            texts.append(text.replace(values["message"], "").replace(values["offset"], ""))
        known, unknown = texts
        if known.replace(ALPHA, NOBODY) != unknown:
            found[route.path] = f"{known[:400]}, and of nobody {unknown[:400]}"
        if "{" in route.path:
            continue
        _, own = answer(base + route.path, token=token)
        requests += 1
        at = own.find(ALPHA)
        if at >= 0:
            found[f"{route.path} without parameters"] = own[max(0, at - 400) : at + 200]
    return requests, found


def path_of(path: str, query: type[msgspec.Struct] | None, slots: Mapping[str, str]) -> str:
    """Return the path and query of a request that names a tenant's topic, group, key and message."""
    names = {
        "topic": slots["Orders"],
        "group": slots["Readers"],
        "key": slots["Key"],
        "id": slots["message"],
        "account": slots["account"],
        "contains": slots["Orders"],
    }
    fields = () if query is None else [field.encode_name for field in msgspec.structs.fields(query)]
    stated = {name: names[name] for name in fields if name in names and f"{{{name}}}" not in path}
    for name, value in names.items():
        path = path.replace(f"{{{name}}}", quote(value, safe=""))
    return f"{path}?{urlencode(stated)}" if stated else path


def answer(url: str, *, token: str = "", body: bytes | None = None) -> tuple[int, str]:
    """Return status and body of a response."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=HTTP_TIMEOUT_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


if __name__ == "__main__":
    asyncio.run(run(arguments()))
