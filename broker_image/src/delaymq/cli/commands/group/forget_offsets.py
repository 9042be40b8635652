"""`delaymq group forget-offsets`: discard consumer offsets that a broker cannot read."""

from __future__ import annotations

from delaymq.cli.options import AsJson, ContextName, HttpAddress, TokenFile, Yes, confirm
from delaymq.cli.target.contexts import target
from delaymq.cli.target.http_api import HttpApi
from delaymq.cli.terminal.output import console, print_json


def forget_offsets(
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Discard consumer offsets that a broker cannot read; it then serves consumers again, and every group starts over.

    A group then consumes its queues from the beginning, or from its consumers' configured start position. To keep the
    offsets instead, put an intact consumerOffset.json into the store's config folder and restart the broker.
    """
    api = HttpApi(target(http=http, token_file=token_file, context=context))
    confirm("All consumer groups of this broker start over and may consume messages again. Discard the offsets?", yes)
    answer = api.post("offsets/forget", {})
    if as_json:
        print_json(answer)
    else:
        console().print(f"consumers are served again; the unreadable files are kept as {', '.join(answer['kept'])}")
