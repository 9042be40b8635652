//! Requests among received bytes, as RocketMQ's clients write them: with a JSON header without spaces.

use std::borrow::Cow;

use crate::frames::Frame;
use crate::json::{Json, integer};
use crate::signatures::Verifier;

const SEND_MESSAGE_V2: i64 = 310;
const END_TRANSACTION: i64 = 37;
const ONE_WAY: i64 = 2;
const LETTERS: usize = 14;
/// Names of the fields of END_TRANSACTION, in the order of a signature.
const ENDING: [&str; 9] = [
    "bname",
    "commitLogOffset",
    "commitOrRollback",
    "fromTransactionCheck",
    "msgId",
    "producerGroup",
    "topic",
    "tranStateTableOffset",
    "transactionId",
];

pub enum Request<'a> {
    Send(Send<'a>),
    End(End<'a>),
}

/// A send, as its frame states it.
pub struct Send<'a> {
    pub opaque: i32,
    pub topic: Cow<'a, str>,
    /// Topic like which an unknown topic is created.
    pub default_topic: Cow<'a, str>,
    pub queue_id: i32,
    pub sys_flag: i32,
    pub born_ms: i64,
    pub flag: i32,
    pub properties: Cow<'a, str>,
    pub reconsume_times: i32,
    pub body: &'a [u8],
}

/// The end of a transaction, as its frame states it.
pub struct End<'a> {
    pub group: Cow<'a, str>,
    /// Queue offset of the half message.
    pub number: i64,
    /// Physical offset of the half message.
    pub place: i64,
    pub outcome: i32,
}

impl<'a> Request<'a> {
    /// Read a frame; None if it is anything but a send of one message with a response, or a one-way end of a transaction,
    /// with the usual JSON header. `verifier`: only with a valid signature, and otherwise only without one.
    pub fn read(frame: &'a [u8], verifier: Option<&Verifier<'_>>) -> Option<Self> {
        let Frame { code, opaque, flag, fields, body } = Frame::read(frame, Fields::read)?;
        if !fields.are_signed(verifier, body) {
            return None;
        }
        match (code, flag.unwrap_or(0)) {
            (SEND_MESSAGE_V2, 0) => Some(Self::Send(fields.send(opaque.unwrap_or(0), body)?)),
            (END_TRANSACTION, ONE_WAY) => Some(Self::End(fields.end()?)),
            _ => None,
        }
    }
}

/// Values of the fields of a signature, of the fields `a` to `n`, and of those in `ENDING`.
#[derive(Default)]
struct Fields<'a> {
    access_key: Option<Cow<'a, str>>,
    signature: Option<Cow<'a, str>>,
    letters: [Option<Cow<'a, str>>; LETTERS],
    ending: [Option<Cow<'a, str>>; ENDING.len()],
}

impl<'a> Fields<'a> {
    fn read(json: &mut Json<'a>) -> Option<Self> {
        let mut fields = Self::default();
        json.object(|json, name| {
            let field = match *name.as_bytes() {
                [letter @ b'a'..=b'n'] => fields.letters.get_mut(usize::from(letter - b'a')),
                _ if name == "AccessKey" => Some(&mut fields.access_key),
                _ if name == "Signature" => Some(&mut fields.signature),
                _ => ENDING.iter().position(|known| *known == name).and_then(|index| fields.ending.get_mut(index)),
            };
            field?.replace(json.string()?).is_none().then_some(())
        })?;
        Some(fields)
    }

    /// Return whether the signature is valid; without a verifier, whether there is none. A request with letters and with
    /// fields of `ENDING` is unusual, so the order of these does not matter.
    fn are_signed(&self, verifier: Option<&Verifier<'_>>, body: &[u8]) -> bool {
        match (verifier, &self.access_key, &self.signature) {
            (None, None, None) => true,
            (Some(verifier), Some(access_key), Some(signature)) => {
                let values = self.letters.iter().chain(&self.ending).filter_map(|value| value.as_deref());
                verifier.accepts(access_key, signature, values, body)
            }
            _ => false,
        }
    }

    /// Return the send; None if a required field is missing, or one has an unusual value.
    fn send(self, opaque: i32, body: &'a [u8]) -> Option<Send<'a>> {
        // In the order of SendMessageRequestHeaderV2: group, topic, default topic, its queues, queue id, system flag, time
        // of birth, flag, properties, times consumed, unit mode, maximum of these times, batch, broker.
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, _] = self.letters;
        let _ = a?;
        let _ = (int32(&d?)?, l.map_or(Some(0), |text| int32(&text))?);
        if self.ending.iter().any(Option::is_some)
            || k.is_some_and(|unit_mode| !is_boolean(&unit_mode))
            || m.is_some_and(|batch| batch != "false")
        {
            return None;
        }
        Some(Send {
            opaque,
            topic: b?,
            default_topic: c?,
            queue_id: int32(&e?)?,
            sys_flag: int32(&f?)?,
            born_ms: integer(&g?)?,
            flag: int32(&h?)?,
            properties: i.unwrap_or_default(),
            reconsume_times: j.map_or(Some(0), |text| int32(&text))?,
            body,
        })
    }

    /// Return the end of a transaction; None as `send`.
    fn end(self) -> Option<End<'a>> {
        let [_, place, outcome, from_check, id, group, _, number, _] = self.ending;
        let _ = id?;
        if self.letters.iter().any(Option::is_some) || from_check.is_some_and(|text| !is_boolean(&text)) {
            return None;
        }
        Some(End { group: group?, number: integer(&number?)?, place: integer(&place?)?, outcome: int32(&outcome?)? })
    }
}

fn int32(text: &str) -> Option<i32> {
    integer(text).and_then(|value| i32::try_from(value).ok())
}

fn is_boolean(text: &str) -> bool {
    text == "true" || text == "false"
}
