"""`delaymq group forget-offsets`: the decision about consumer offsets that a broker cannot read."""

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
    """Give up consumer offsets that a broker cannot read: it serves consumers again, and every group starts anew.

    A group that starts anew reads its queues from the beginning, or from where its consumers are told to start. To keep
    the offsets, put a good consumerOffset.json into the folder config of the store and restart the broker instead.
    """
    api = HttpApi(target(http=http, token_file=token_file, context=context))
    confirm("All consumer groups of this broker start anew and may read again what they have consumed.", yes)
    answer = api.post("offsets/forget", {})
    if as_json:
        print_json(answer)
    else:
        console().print(f"consumers are served again; what could not be read is kept: {', '.join(answer['kept'])}")
