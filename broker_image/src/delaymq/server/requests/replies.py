"""Sends the answer to a request, on every server in one way."""

from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import FLAG_ONEWAY, Command, Response, encode_response
from delaymq.server.requests.client_session import ClientSession


def reply(session: ClientSession, request: Command, response: Response) -> None:
    """Answers `request`, unless it wants no answer; one that fits no frame says so in its place."""
    if request.flag & FLAG_ONEWAY:
        return
    try:
        data = encode_response(request, response)
    except ValueError as error:
        data = encode_response(request, unsendable(error))
    session.connection.send(data)


def unsendable(error: ValueError) -> Response:
    """What is answered in the place of an answer that cannot be encoded."""
    return Response(ResponseCode.SYSTEM_ERROR, f"the answer cannot be sent: {error}")
