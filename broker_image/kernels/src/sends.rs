//! Plain sends among received bytes, for the log (twin: delaymq_testing/broker/send_encoder.py).

use std::borrow::Cow;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};

use crate::batch::{
    BODY_CRC_MASK, FIXED_BYTES, HOST_MASK, MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES, MESSAGE_MAGIC, TRANSACTION_MASK,
};
use crate::json::{Json, integer};
use crate::properties::{self, Pair};
use crate::records;

const SEND_MESSAGE_V2: i64 = 310;
/// Headers above this size are left to Python. A larger word would also state another serialisation than JSON.
const MAX_HEADER_BYTES: usize = 0xFFFF;
/// Queues of the sends of one call are searched one by one.
const MAX_QUEUES: usize = 64;
/// Initial size of the keys.
const KEYS_BYTES: usize = 256;
const IPV4_HOST_BYTES: usize = 8;
const MULTI_TAG: &str = "MULTI_TAG";

/// Topic, queue id, queue offset of the first record, number of records, physical offsets of the first and the last
/// record, entries.
type Stretch<'py> = (Bound<'py, PyString>, i32, i64, usize, i64, i64, Bound<'py, PyBytes>);

/// Size of the handled frames, position of the last record, records, keys for the index, stretches, for each topic its
/// number of messages and the size of their records, responses.
type Sent<'py> = (
    usize,
    usize,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Vec<Stretch<'py>>,
    Vec<(Bound<'py, PyString>, usize, usize)>,
    Bound<'py, PyBytes>,
);

/// Encoder of sends that need no rules but those given to the constructor.
#[pyclass(frozen, module = "delaymq_kernels")]
pub struct SendEncoder {
    /// Names of properties that need rules of the broker.
    ruled: Vec<String>,
    /// Names with this prefix need rules, too.
    own_prefix: String,
    /// Topics that need rules.
    closed: Vec<String>,
    /// Topics with this prefix need rules, too.
    retry_prefix: String,
    names: Names,
}

/// Names of properties, from a tuple.
#[derive(FromPyObject)]
struct Names {
    #[pyo3(item(0))]
    wait: String,
    #[pyo3(item(1))]
    cluster: String,
}

#[pymethods]
impl SendEncoder {
    /// `names` are those of the properties that the broker removes and sets.
    #[new]
    fn new(ruled: Vec<String>, own_prefix: String, closed: Vec<String>, retry_prefix: String, names: Names) -> Self {
        Self { ruled, own_prefix, closed, retry_prefix, names }
    }

    /// Return the records of the plain sends at the start of `data`, up to the first frame that Python has to handle.
    ///
    /// `topics` maps names to configurations, `queues` maps topic and queue id to queues with a `max_number`. `answer`
    /// are the parts of a response: up to the id's offset, between it and the queue id, between it and the queue offset,
    /// up to the opaque, and the end.
    #[allow(clippy::too_many_arguments)]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        data: &[u8],
        topics: &Bound<'py, PyDict>,
        born_host: &[u8],
        store_host: &[u8],
        max_body_bytes: usize,
        cluster: &str,
        answer: (PyBackedBytes, PyBackedBytes, PyBackedBytes, PyBackedBytes, PyBackedBytes),
        queues: &Bound<'py, PyDict>,
        physical_offset: i64,
        store_ms: i64,
        max_record_bytes: usize,
        room_bytes: usize,
    ) -> Sent<'py> {
        let mut writer = Writer {
            encoder: self,
            topics,
            queues,
            hosts: (born_host, store_host),
            max_body_bytes,
            cluster,
            answer: [&answer.0, &answer.1, &answer.2, &answer.3, &answer.4],
            physical_offset,
            store_ms,
            max_record_bytes,
            room_bytes,
            last_at: 0,
            known_topics: Vec::new(),
            known_queues: Vec::new(),
            records: Vec::with_capacity(data.len()),
            keys: Vec::with_capacity(KEYS_BYTES),
            responses: Vec::with_capacity(data.len() / 4),
        };
        let mut at = 0;
        if born_host.len() == IPV4_HOST_BYTES && store_host.len() == IPV4_HOST_BYTES {
            while let Some(bytes) = writer.add_frame_at(data, at) {
                at += bytes;
            }
        }
        let Writer { last_at, known_topics, known_queues, records, keys, responses, .. } = writer;
        let found = known_queues.into_iter().filter(|queue| queue.count > 0).filter_map(|queue| {
            let topic = known_topics.get(queue.topic)?.name.clone();
            let entries = PyBytes::new(py, &queue.entries);
            Some((topic, queue.id, queue.first, queue.count, queue.first_at, queue.last_at, entries))
        });
        let stretches = found.collect();
        let sums = known_topics.into_iter().filter(|topic| topic.messages > 0);
        let sums = sums.map(|topic| (topic.name, topic.messages, topic.bytes)).collect();
        let [records, keys, responses] = [records, keys, responses].map(|each| PyBytes::new(py, &each));
        (at, last_at, records, keys, stretches, sums, responses)
    }
}

/// Return the complete frame at a position, without its length.
fn frame_at(data: &[u8], at: usize) -> Option<&[u8]> {
    let (length, rest) = data.get(at..)?.split_first_chunk::<4>()?;
    rest.get(..u32::from_be_bytes(*length) as usize)
}

/// A send, as its frame states it.
struct Send<'a> {
    opaque: i32,
    topic: Cow<'a, str>,
    queue_id: i32,
    sys_flag: i32,
    born_ms: i64,
    flag: i32,
    properties: Cow<'a, str>,
    reconsume_times: i32,
    body: &'a [u8],
}

impl<'a> Send<'a> {
    /// Read a frame; None if it is anything but a send of one message with the usual JSON header.
    fn read(frame: &'a [u8]) -> Option<Self> {
        let (word, rest) = frame.split_first_chunk::<4>()?;
        let header_bytes = u32::from_be_bytes(*word) as usize;
        if header_bytes > MAX_HEADER_BYTES {
            return None;
        }
        let (header, body) = rest.split_at_checked(header_bytes)?;
        let mut json = Json::new(std::str::from_utf8(header).ok()?);
        let (mut code, mut opaque, mut flag, mut fields) = (None, None, None, None);
        let mut others = [false; 3];
        json.object(|json, name| {
            let is_first = match name {
                "code" => code.replace(json.integer()?).is_none(),
                "opaque" => opaque.replace(i32::try_from(json.integer()?).ok()?).is_none(),
                "flag" => flag.replace(json.integer()?).is_none(),
                "extFields" => fields.replace(Fields::read(json)?).is_none(),
                "version" => {
                    i32::try_from(json.integer()?).ok()?;
                    !std::mem::replace(&mut others[0], true)
                }
                "language" | "serializeTypeCurrentRPC" => {
                    json.string()?;
                    !std::mem::replace(&mut others[if name == "language" { 1 } else { 2 }], true)
                }
                _ => false,
            };
            is_first.then_some(())
        })?;
        if !json.is_at_end() || code? != SEND_MESSAGE_V2 || flag.unwrap_or(0) != 0 {
            return None;
        }
        fields?.send(opaque.unwrap_or(0), body)
    }
}

/// Values of the fields `a` to `n`.
struct Fields<'a>([Option<Cow<'a, str>>; 14]);

impl<'a> Fields<'a> {
    fn read(json: &mut Json<'a>) -> Option<Self> {
        let mut fields = Self(Default::default());
        json.object(|json, name| {
            let [letter @ b'a'..=b'n'] = *name.as_bytes() else { return None };
            fields.0[usize::from(letter - b'a')].replace(json.string()?).is_none().then_some(())
        })?;
        Some(fields)
    }

    /// Return the send; None if a required field is missing, or one has an unusual value.
    fn send(self, opaque: i32, body: &'a [u8]) -> Option<Send<'a>> {
        // In the order of SendMessageRequestHeaderV2: group, topic, default topic, its queues, queue id, system flag, time
        // of birth, flag, properties, times consumed, unit mode, maximum of these times, batch, broker.
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, _] = self.0;
        let _ = (a?, c?);
        let int32 = |text: Cow<'_, str>| integer(&text).and_then(|value| i32::try_from(value).ok());
        let _ = (int32(d?)?, l.map_or(Some(0), int32)?);
        if k.is_some_and(|unit_mode| unit_mode != "false" && unit_mode != "true")
            || m.is_some_and(|batch| batch != "false")
        {
            return None;
        }
        Some(Send {
            opaque,
            topic: b?,
            queue_id: int32(e?)?,
            sys_flag: int32(f?)?,
            born_ms: integer(&g?)?,
            flag: int32(h?)?,
            properties: i.unwrap_or_default(),
            reconsume_times: j.map_or(Some(0), int32)?,
            body,
        })
    }
}

struct Topic<'py> {
    text: String,
    name: Bound<'py, PyString>,
    key_base: u32,
    /// Number of its queues.
    queues: i32,
    messages: usize,
    bytes: usize,
}

struct Queue {
    /// Index of the topic.
    topic: usize,
    id: i32,
    first: i64,
    count: usize,
    first_at: i64,
    last_at: i64,
    entries: Vec<u8>,
}

/// What the sends so far have caused, and what all of them share.
struct Writer<'a, 'py> {
    encoder: &'a SendEncoder,
    topics: &'a Bound<'py, PyDict>,
    queues: &'a Bound<'py, PyDict>,
    /// Of the producer and of the broker.
    hosts: (&'a [u8], &'a [u8]),
    max_body_bytes: usize,
    cluster: &'a str,
    answer: [&'a [u8]; 5],
    physical_offset: i64,
    store_ms: i64,
    max_record_bytes: usize,
    room_bytes: usize,
    last_at: usize,
    known_topics: Vec<Topic<'py>>,
    known_queues: Vec<Queue>,
    records: Vec<u8>,
    keys: Vec<u8>,
    responses: Vec<u8>,
}

impl<'py> Writer<'_, 'py> {
    /// Append the send in the frame at a position; return its size. None if Python has to handle it.
    fn add_frame_at(&mut self, data: &[u8], at: usize) -> Option<usize> {
        let frame = frame_at(data, at)?;
        self.add(frame)?;
        Some(4 + frame.len())
    }

    /// Append the send in a frame. None if Python has to handle it; nothing is appended then.
    fn add(&mut self, frame: &[u8]) -> Option<()> {
        let send = Send::read(frame)?;
        if send.sys_flag & (HOST_MASK | TRANSACTION_MASK) != 0 || send.body.len() > self.max_body_bytes {
            return None;
        }
        let topic = self.topic(&send.topic)?;
        let queue = self.queue(topic, send.queue_id)?;
        let encoder = self.encoder;
        let mut pairs: Vec<Pair<'_>> = Vec::with_capacity(16);
        let is_free = |pair: &Pair<'_>| {
            !pair.0.starts_with(&encoder.own_prefix) && !encoder.ruled.iter().any(|ruled| ruled == pair.0)
        };
        if !properties::parse(&send.properties, &mut pairs) || !pairs.iter().all(is_free) {
            return None;
        }
        pairs.retain(|pair| pair.0 != encoder.names.wait);
        if !properties::put(&mut pairs, (&encoder.names.cluster, self.cluster)) {
            return None;
        }
        let properties_bytes = properties::encoded_bytes(&pairs);
        let size = FIXED_BYTES + send.body.len() + send.topic.len() + properties_bytes;
        let at = self.records.len();
        if properties_bytes > MAX_PROPERTIES_BYTES || size > self.max_record_bytes || at + size > self.room_bytes {
            return None;
        }
        let (stated_size, body_bytes) = (i32::try_from(size).ok()?, i32::try_from(send.body.len()).ok()?);
        let offset = self.physical_offset.checked_add(i64::try_from(at).ok()?)?;
        let topic = self.known_topics.get_mut(topic)?;
        let queue = self.known_queues.get_mut(queue)?;
        let queue_offset = queue.first.checked_add(i64::try_from(queue.count).ok()?)?;
        let to = &mut self.records;
        to.extend_from_slice(&stated_size.to_be_bytes());
        to.extend_from_slice(&MESSAGE_MAGIC.to_be_bytes());
        to.extend_from_slice(&(crc32fast::hash(send.body) & BODY_CRC_MASK).to_be_bytes());
        to.extend_from_slice(&send.queue_id.to_be_bytes());
        to.extend_from_slice(&send.flag.to_be_bytes());
        to.extend_from_slice(&queue_offset.to_be_bytes());
        to.extend_from_slice(&offset.to_be_bytes());
        to.extend_from_slice(&send.sys_flag.to_be_bytes());
        for (time_ms, host) in [(send.born_ms, self.hosts.0), (self.store_ms, self.hosts.1)] {
            to.extend_from_slice(&time_ms.to_be_bytes());
            to.extend_from_slice(host);
        }
        to.extend_from_slice(&send.reconsume_times.to_be_bytes());
        to.extend_from_slice(&0_i64.to_be_bytes()); // prepared transaction offset
        to.extend_from_slice(&body_bytes.to_be_bytes());
        to.extend_from_slice(send.body);
        to.push(send.topic.len() as u8);
        to.extend_from_slice(send.topic.as_bytes());
        to.extend_from_slice(&(properties_bytes as u16).to_be_bytes());
        properties::encode(&pairs, to);
        self.last_at = at;
        if queue.count == 0 {
            queue.first_at = offset;
        }
        (queue.last_at, queue.count) = (offset, queue.count + 1);
        (topic.messages, topic.bytes) = (topic.messages + 1, topic.bytes + size);
        records::add_entry(&mut queue.entries, offset, stated_size, &pairs);
        records::add_keys(&mut self.keys, topic.key_base, &pairs, offset, self.store_ms);
        respond(&mut self.responses, self.answer, offset, send.queue_id, queue_offset, send.opaque);
        Some(())
    }

    /// Return the index of a topic; None if it needs rules.
    fn topic(&mut self, text: &str) -> Option<usize> {
        let known = self.known_topics.iter().position(|topic| topic.text == text);
        if known.is_some() {
            return known;
        }
        if text.len() > MAX_TOPIC_BYTES
            || text.starts_with(&self.encoder.retry_prefix)
            || self.encoder.closed.iter().any(|closed| closed == text)
        {
            return None;
        }
        let py = self.topics.py();
        let name = PyString::new(py, text);
        let config = self.topics.get_item(&name).ok()??;
        let filter = config.getattr(intern!(py, "topic_filter_type")).ok()?;
        if filter.cast::<PyString>().ok()?.to_cow().ok()? == MULTI_TAG
            || config.getattr(intern!(py, "order")).ok()?.extract().ok()?
        {
            return None;
        }
        let written: i32 = config.getattr(intern!(py, "write_queue_nums")).ok()?.extract().ok()?;
        let read: i32 = config.getattr(intern!(py, "read_queue_nums")).ok()?.extract().ok()?;
        let key_base = records::key_base(text);
        let text = text.to_owned();
        self.known_topics.push(Topic { text, name, key_base, queues: written.max(read), messages: 0, bytes: 0 });
        Some(self.known_topics.len() - 1)
    }

    /// Return the index of a queue; None if it does not exist.
    fn queue(&mut self, topic: usize, id: i32) -> Option<usize> {
        let known = self.known_queues.iter().position(|queue| queue.id == id && queue.topic == topic);
        if known.is_some() {
            return known;
        }
        let of = self.known_topics.get(topic)?;
        if !(0..of.queues).contains(&id) || self.known_queues.len() == MAX_QUEUES {
            return None;
        }
        let py = self.queues.py();
        let key = PyTuple::new(py, [of.name.as_any(), id.into_pyobject(py).ok()?.as_any()]).ok()?;
        let first = self.queues.get_item(key).ok()??.getattr(intern!(py, "max_number")).ok()?.extract().ok()?;
        self.known_queues.push(Queue { topic, id, first, count: 0, first_at: 0, last_at: 0, entries: Vec::new() });
        Some(self.known_queues.len() - 1)
    }
}

/// Append a response.
fn respond(to: &mut Vec<u8>, parts: [&[u8]; 5], offset: i64, queue_id: i32, queue_offset: i64, opaque: i32) {
    let start = to.len();
    to.extend_from_slice(&[0; 8]);
    to.extend_from_slice(parts[0]);
    to.extend((0..16).rev().map(|digit| b"0123456789ABCDEF"[(offset >> (4 * digit)) as usize & 0xF]));
    for (part, number) in parts[1..].iter().zip([i64::from(queue_id), queue_offset, i64::from(opaque)]) {
        to.extend_from_slice(part);
        to.extend_from_slice(number.to_string().as_bytes());
    }
    to.extend_from_slice(parts[4]);
    let header_bytes = (to.len() - start - 8) as u32;
    for (at, word) in [(start, header_bytes + 4), (start + 4, header_bytes)] {
        to[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }
}
