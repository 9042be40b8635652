"""Sending of responses, shared by all servers."""

from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import FLAG_ONEWAY, Command, Response, encode_response
from delaymq.server.audit.auditing import AuditedCommand
from delaymq.server.requests.client_session import ClientSession


def reply(session: ClientSession, request: Command, response: Response) -> None:
    """Send the response to `request` unless it is one-way; an unencodable response is replaced by an error.

    The response to an audited request is recorded before.
    """
    if type(request) is AuditedCommand and request.answered is not None:
        request.answered(response)
    if request.flag & FLAG_ONEWAY:
        return
    try:
        data = encode_response(request, response)
    except ValueError as error:
        data = encode_response(request, unsendable(error))
    session.connection.send(data)


def unsendable(error: ValueError) -> Response:
    """Return the error response that replaces an unencodable one."""
    return Response(ResponseCode.SYSTEM_ERROR, f"the response cannot be sent: {error}")
