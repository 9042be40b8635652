"""Sending of responses, shared by all servers."""

from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import FLAG_ONEWAY, Command, Response, encode_response
from delaymq.protocol.frame import decode_frames
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


def with_code(responses: bytes, code: int) -> bytes:
    """Return encoded responses without a body, in JSON, with another code."""
    frames, _ = decode_frames(responses, 0)
    return b"".join(encode_response(frame, Response(code, frame.remark, frame.fields)) for frame in frames)
