"""POST /api/v1/deadletters/{group}/resend: resend dead letters to their group."""

from delaymq.api_types.dead_letters import NotResent, ResendBody, Resends, Resent
from delaymq.broker.sending.dead_letter_resend import resend
from delaymq.message import names
from delaymq.message.ids import offset_message_id
from delaymq.message.record import Record
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Response
from delaymq.protocol.errors import RequestError
from delaymq.server.api.messages.resent import resent_as
from delaymq.server.api.messages.search import named, parse_id
from delaymq.server.api.routing import Api, ApiError, Name, Query


class ResendQuery(Query):
    """Parameters of a resend."""

    group: Name


async def resend_dead_letters(api: Api, query: ResendQuery, body: ResendBody) -> Resends:
    """Resend dead letters to their group, and return when they are stored as durably as other messages."""
    broker, group = api.broker, query.group
    if group not in broker.groups.table:
        raise ApiError(404, "no_such_group", f"this broker has no group {group[:255]!r}: see /api/v1/groups")
    answer = Resends(resent=[], failed=[])
    end_offset = 0
    # Concurrent requests must not both find that a message was not resent before.
    async with api.resending:
        for each in body.messages:
            message_id = each.offset_message_id.upper()
            try:
                dead_letter = await _dead_letter(api, group, message_id)
                if not body.again:
                    await _refuse_second(api, group, dead_letter)
                appended = resend(broker, group, dead_letter)
            except ApiError as error:
                answer.failed.append(NotResent(offset_message_id=message_id, code=error.code, message=error.message))
            except RequestError as error:
                answer.failed.append(NotResent(offset_message_id=message_id, code="refused", message=error.remark))
            else:
                new_id = offset_message_id(broker.store_host, appended.physical_offset)
                answer.resent.append(Resent(offset_message_id=message_id, new_offset_message_id=new_id))
                end_offset = appended.physical_offset + appended.size
    if answer.resent and broker.answers_wait:
        await _confirmed(api, end_offset)
    return answer


async def _confirmed(api: Api, end_offset: int) -> None:
    deferred = api.broker.deferred(Response(), end_offset, lambda code: Response(code))
    if (await api.server.flushing.outcome(deferred)).code != ResponseCode.SUCCESS:
        raise ApiError(
            503,
            "not_flushed",
            "the resent messages are stored, but not yet flushed to disk or not yet replicated: check whether they"
            " still exist before you resend the same dead letters",
        )


async def _dead_letter(api: Api, group: str, message_id: str) -> Record:
    offset = parse_id(message_id)
    read = None if offset is None else await named(api, offset)
    if read is None or offset_message_id(read.record.store_host, read.record.physical_offset) != message_id:
        raise _no_such_message()
    topic = names.dead_letter_topic(group)
    if read.record.topic != topic and not api.caller.sees_topic(read.record.topic):
        raise _no_such_message()
    if read.record.topic != topic:
        raise ApiError(409, "not_a_dead_letter", f"the message is in topic {read.record.topic}, not in {topic}")
    async with api.reading():
        record = await api.in_thread(api.log_files().whole, read.record.physical_offset)
    if record is None:
        raise _no_such_message()
    return record


def _no_such_message() -> ApiError:
    return ApiError(404, "no_such_message", "this broker has no such message, or it was deleted")


async def _refuse_second(api: Api, group: str, dead_letter: Record) -> None:
    if not api.broker.config.message_index_enable:
        message = "without messageIndexEnable, earlier resends are unknown: set again=true to resend the message"
        raise ApiError(409, "not_known", message)
    found = (await resent_as(api, group, [dead_letter]))[0]
    if found is not None:
        new_id = offset_message_id(found.store_host, found.physical_offset)
        raise ApiError(409, "resent_before", f"the message was resent before, as {new_id}: set again=true to resend it")
