//! Plain sends and ends of transactions among received bytes, for the log (twin:
//! delaymq_testing/broker/plain_sends/send_encoder.py).

use pyo3::buffer::PyBuffer;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::batch::{
    BODY_CRC_MASK, FIXED_BYTES, HOST_MASK, MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES, MESSAGE_MAGIC, OFFSET_DIGITS,
    TRANSACTION_MASK,
};
use crate::delays::{self, Delays};
use crate::frames::frame_at;
use crate::hex;
use crate::properties::{self, Pair};
use crate::records;
use crate::requests::{Request, Send};
use crate::signatures::{Signer, Verifier};
use crate::transactions::Rules;

/// Queues of the sends of one call are searched one by one.
const MAX_QUEUES: usize = 64;
/// Initial size of the keys.
const KEYS_BYTES: usize = 256;
const IPV4_HOST_BYTES: usize = 8;
const MULTI_TAG: &str = "MULTI_TAG";

/// Topic, queue id, queue offset of the first record, number of records, physical offsets of the first and the last
/// record, entries.
type Stretch<'py> = (Bound<'py, PyString>, i32, i64, usize, i64, i64, Bound<'py, PyBytes>);

/// Topic, number of messages and size of their records, number of half messages and timed messages that are stored
/// elsewhere, number of committed copies and size of their records.
type Sums<'py> = (Bound<'py, PyString>, usize, usize, usize, usize, usize);

/// Of a half message: queue offset, physical offset, time of birth in ms, producer group. Of an end: queue offset of the
/// op mark, physical offset of the half message, outcome, an empty text.
pub type Step = (i64, i64, i64, String);

/// A delayed message: its own topic, queue of the schedule topic (-1: the timer topic), physical offset, size, due time
/// in ms.
pub type Delayed<'py> = (Bound<'py, PyString>, i32, i64, i32, i64);

/// Size of the handled frames, position of the last record, records, keys for the index, stretches, sums of what has no
/// delay level, responses, steps of transactions, delayed messages, size of the bodies of sends.
type Sent<'py> = (
    usize,
    usize,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Vec<Stretch<'py>>,
    Vec<Sums<'py>>,
    Bound<'py, PyBytes>,
    Vec<Step>,
    Vec<Delayed<'py>>,
    usize,
);

/// Encoder of requests that need no rules but those given to the constructor.
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
    pub names: Names,
    pub transactions: Rules,
    pub delays: delays::Rules,
}

/// Parts of a response, between which its numbers are written, from a tuple.
#[derive(FromPyObject)]
pub struct Answer {
    #[pyo3(item(0))]
    to_offset: PyBackedBytes,
    #[pyo3(item(1))]
    to_queue_id: PyBackedBytes,
    #[pyo3(item(2))]
    to_queue_offset: PyBackedBytes,
    /// Without a recall handle.
    #[pyo3(item(3))]
    to_opaque: PyBackedBytes,
    #[pyo3(item(4))]
    end: PyBackedBytes,
    /// With a recall handle: the parts before and after it, in place of `to_opaque`.
    #[pyo3(item(5))]
    to_handle: PyBackedBytes,
    #[pyo3(item(6))]
    after_handle: PyBackedBytes,
    /// Name of the broker in recall handles.
    #[pyo3(item(7))]
    pub broker_name: String,
}

/// Names of properties and of a topic, from a tuple.
#[derive(FromPyObject)]
pub struct Names {
    #[pyo3(item(0))]
    pub wait: String,
    #[pyo3(item(1))]
    pub cluster: String,
    #[pyo3(item(2))]
    pub account: String,
    /// Topic like which a signed send may request an unknown one.
    #[pyo3(item(3))]
    default_topic: String,
}

#[pymethods]
impl SendEncoder {
    /// `names` are those of the properties that the broker removes and sets, and of the default topic. `delays` concern
    /// delayed messages.
    #[new]
    fn new(
        ruled: Vec<String>,
        own_prefix: String,
        closed: Vec<String>,
        retry_prefix: String,
        names: Names,
        transactions: Rules,
        delays: delays::Rules,
    ) -> Self {
        Self { ruled, own_prefix, closed, retry_prefix, names, transactions, delays }
    }

    /// Return the records of the requests at the start of `data`, up to the first frame that Python has to handle.
    ///
    /// `topics` maps names to configurations, `queues` maps topic and queue id to queues with a `max_number`. `waits`:
    /// all responses wait, so messages that request none of this are left to Python. `halves` are the maximum size of a
    /// half message's body (-1: there may be none), the chunks of pending half messages, the time in ms, and the physical
    /// offset at which the half messages that may be ended end. `delays` decide about delayed messages. `signer`: requests
    /// need its signature, and otherwise must have none. `log` is the open segment, which begins at `log_base`.
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
        answer: Answer,
        waits: bool,
        halves: (i64, Bound<'py, PyList>, i64, i64),
        delays: Delays<'py>,
        signer: Option<Signer<'py>>,
        queues: &Bound<'py, PyDict>,
        physical_offset: i64,
        store_ms: i64,
        max_record_bytes: usize,
        room_bytes: usize,
        log: &Bound<'py, PyAny>,
        log_base: i64,
    ) -> Sent<'py> {
        let mut writer = Writer {
            py,
            encoder: self,
            topics,
            queues,
            hosts: (born_host, store_host),
            max_body_bytes,
            max_half_body_bytes: halves.0,
            pending: &halves.1,
            now_ms: halves.2,
            halves_end: halves.3,
            delays,
            signer: signer.as_ref(),
            log,
            log_base,
            mapped: None,
            cluster,
            answer: &answer,
            waits,
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
            steps: Vec::new(),
            delayed: Vec::new(),
            ended: Vec::new(),
            read_bytes: 0,
            body_bytes: 0,
        };
        let verifier = signer.as_ref().map(|signer| signer.verifier());
        let is_usual = born_host.len() == IPV4_HOST_BYTES && store_host.len() == IPV4_HOST_BYTES;
        let mut at = 0;
        if is_usual && !matches!(verifier, Some(None)) {
            let verifier = verifier.flatten();
            while let Some(bytes) = writer.add_frame_at(data, at, verifier.as_ref()) {
                at += bytes;
            }
        }
        let Writer {
            last_at, known_topics, known_queues, records, keys, responses, steps, delayed, body_bytes, ..
        } = writer;
        let found = known_queues.into_iter().filter(|queue| queue.count > 0).filter_map(|queue| {
            let topic = known_topics.get(queue.topic)?.name.clone();
            let entries = PyBytes::new(py, &queue.entries);
            Some((topic, queue.id, queue.first, queue.count, queue.first_at, queue.last_at, entries))
        });
        let stretches = found.collect();
        let sums = known_topics.into_iter().filter(|topic| topic.messages + topic.elsewhere + topic.copies > 0);
        let sums = sums.map(|of| (of.name, of.messages, of.bytes, of.elsewhere, of.copies, of.copied_bytes)).collect();
        let [records, keys, responses] = [records, keys, responses].map(|each| PyBytes::new(py, &each));
        (at, last_at, records, keys, stretches, sums, responses, steps, delayed, body_bytes)
    }
}

impl SendEncoder {
    /// Return whether a property needs no rules.
    pub fn is_free(&self, pair: &Pair<'_>) -> bool {
        !pair.0.starts_with(&self.own_prefix) && !self.ruled.iter().any(|ruled| ruled == pair.0)
    }
}

pub struct Topic<'py> {
    text: String,
    pub name: Bound<'py, PyString>,
    key_base: u32,
    /// Whether only the broker stores records in it.
    is_closed: bool,
    /// Number of its queues.
    queues: i32,
    /// Messages without a delay level, and the size of their records.
    messages: usize,
    bytes: usize,
    /// Messages for the topic that are stored in another one.
    pub elsewhere: usize,
    pub copies: usize,
    pub copied_bytes: usize,
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

/// A message of a send, as it is to be stored.
pub struct Message<'a> {
    pub pairs: &'a [Pair<'a>],
    pub max_properties_bytes: usize,
    /// Due time, which the entry contains in place of the tags code.
    pub due_ms: Option<i64>,
    /// Recall handle in the response.
    pub handle: Option<&'a str>,
}

/// Fields of a record that do not depend on its place.
pub struct Fields<'a> {
    pub flag: i32,
    pub sys_flag: i32,
    pub born_ms: i64,
    pub born_host: &'a [u8],
    pub store_host: &'a [u8],
    pub reconsume_times: i32,
    /// Prepared transaction offset.
    pub prepared: i64,
    pub body: &'a [u8],
    pub body_crc: u32,
    pub properties: &'a [u8],
    pub pairs: &'a [Pair<'a>],
    /// Due time, which the entry contains in place of the tags code.
    pub due_ms: Option<i64>,
}

/// Index of a queue, and where its next record is.
pub struct Place {
    queue: usize,
    /// Queue offset.
    pub number: i64,
    /// Physical offset.
    pub offset: i64,
    pub stated_size: i32,
}

/// What the requests so far have caused, and what all of them share.
pub struct Writer<'a, 'py> {
    pub py: Python<'py>,
    pub encoder: &'a SendEncoder,
    topics: &'a Bound<'py, PyDict>,
    queues: &'a Bound<'py, PyDict>,
    /// Of the producer and of the broker.
    pub hosts: (&'a [u8], &'a [u8]),
    max_body_bytes: usize,
    pub max_half_body_bytes: i64,
    pub pending: &'a Bound<'py, PyList>,
    pub now_ms: i64,
    pub halves_end: i64,
    pub delays: Delays<'py>,
    pub signer: Option<&'a Signer<'py>>,
    pub log: &'a Bound<'py, PyAny>,
    pub log_base: i64,
    /// The log, after the first access.
    pub mapped: Option<PyBuffer<u8>>,
    pub cluster: &'a str,
    pub answer: &'a Answer,
    waits: bool,
    pub physical_offset: i64,
    store_ms: i64,
    pub max_record_bytes: usize,
    room_bytes: usize,
    last_at: usize,
    pub known_topics: Vec<Topic<'py>>,
    known_queues: Vec<Queue>,
    records: Vec<u8>,
    keys: Vec<u8>,
    responses: Vec<u8>,
    pub steps: Vec<Step>,
    pub delayed: Vec<Delayed<'py>>,
    /// Physical offsets of half messages whose ends were appended.
    pub ended: Vec<i64>,
    /// Size of the records of half messages that were read.
    pub read_bytes: usize,
    /// Size of the bodies of sends.
    body_bytes: usize,
}

impl<'a, 'py> Writer<'a, 'py> {
    /// Append what the frame at a position requests; return its size. None if Python has to handle it.
    fn add_frame_at(&mut self, data: &[u8], at: usize, verifier: Option<&Verifier<'_>>) -> Option<usize> {
        let frame = frame_at(data, at)?;
        match Request::read(frame, verifier)? {
            Request::Send(send) => {
                self.add(&send)?;
                self.body_bytes += send.body.len();
            }
            Request::End(end) => self.add_end(&end)?,
        }
        Some(4 + frame.len())
    }

    /// Append a send. None if Python has to handle it; nothing is appended then.
    fn add(&mut self, send: &Send<'_>) -> Option<()> {
        if send.sys_flag & HOST_MASK != 0 || send.body.len() > self.max_body_bytes {
            return None;
        }
        if self.signer.is_some() && send.default_topic != self.encoder.names.default_topic {
            return None;
        }
        let topic = self.topic(&send.topic).filter(|_| self.may_send_to(&send.topic))?;
        let mut pairs: Vec<Pair<'_>> = Vec::with_capacity(16);
        if send.properties.contains('\0') || !properties::parse(&send.properties, &mut pairs) {
            return None;
        }
        let wait = properties::value_of(&pairs, &self.encoder.names.wait);
        if self.waits && wait.is_some_and(|wait| !wait.eq_ignore_ascii_case("true")) {
            return None;
        }
        if send.sys_flag & TRANSACTION_MASK != 0 {
            return self.add_half(send, topic, pairs);
        }
        let encoder = self.encoder;
        if !pairs.iter().all(|pair| encoder.is_free(pair)) {
            return None;
        }
        match (encoder.delays.level(&pairs), encoder.delays.timed.requested(&pairs).ok()?) {
            (None, None) => {}
            (Some(level), None) => return self.add_delayed(send, topic, pairs, level),
            (None, Some(request)) => return self.add_timed(send, topic, pairs, request),
            _ => return None,
        }
        pairs.retain(|pair| pair.0 != encoder.names.wait);
        if !properties::put(&mut pairs, (&encoder.names.cluster, self.cluster)) {
            return None;
        }
        let queue = self.queue(topic, send.queue_id)?;
        let message = Message { pairs: &pairs, max_properties_bytes: MAX_PROPERTIES_BYTES, due_ms: None, handle: None };
        let place = self.add_message(send, topic, queue, &message)?;
        self.count(topic, &place)
    }

    /// Append the message of a send to a queue of a topic, and the response. None as `add`.
    pub fn add_message(&mut self, send: &Send<'_>, topic: usize, queue: usize, message: &Message<'_>) -> Option<Place> {
        let &Message { pairs, max_properties_bytes, due_ms, handle } = message;
        let properties_bytes = properties::encoded_bytes(pairs);
        let size = self.size(topic, send.body, properties_bytes)?;
        if properties_bytes > max_properties_bytes || size > self.max_record_bytes {
            return None;
        }
        let place = self.place(queue, size, 0)?;
        let mut raw = Vec::with_capacity(properties_bytes);
        properties::encode(pairs, &mut raw);
        let fields = Fields {
            flag: send.flag,
            sys_flag: send.sys_flag & !TRANSACTION_MASK,
            born_ms: send.born_ms,
            born_host: self.hosts.0,
            store_host: self.hosts.1,
            reconsume_times: send.reconsume_times,
            prepared: 0,
            body: send.body,
            body_crc: crc32fast::hash(send.body) & BODY_CRC_MASK,
            properties: &raw,
            pairs,
            due_ms,
        };
        self.write(&place, &fields)?;
        respond(&mut self.responses, self.answer, &place, send, handle);
        Some(place)
    }

    /// Count a message that was appended to a topic.
    pub fn count(&mut self, topic: usize, place: &Place) -> Option<()> {
        let topic = self.known_topics.get_mut(topic)?;
        topic.messages += 1;
        topic.bytes += usize::try_from(place.stated_size).ok()?;
        Some(())
    }

    /// Return the size of a record.
    pub fn size(&self, topic: usize, body: &[u8], properties_bytes: usize) -> Option<usize> {
        Some(FIXED_BYTES + body.len() + self.known_topics.get(topic)?.text.len() + properties_bytes)
    }

    /// Return where the next record of a queue is, if `before` bytes come before it. None if there is no room.
    pub fn place(&self, queue: usize, size: usize, before: usize) -> Option<Place> {
        let at = self.records.len() + before;
        if at + size > self.room_bytes {
            return None;
        }
        let number = self.next_number(queue)?;
        let offset = self.next_offset()?.checked_add(i64::try_from(before).ok()?)?;
        Some(Place { queue, number, offset, stated_size: i32::try_from(size).ok()? })
    }

    /// Return the physical offset of the next record.
    pub fn next_offset(&self) -> Option<i64> {
        self.physical_offset.checked_add(i64::try_from(self.records.len()).ok()?)
    }

    /// Return the queue offset of the next record of a queue.
    pub fn next_number(&self, queue: usize) -> Option<i64> {
        let known = self.known_queues.get(queue)?;
        known.first.checked_add(i64::try_from(known.count).ok()?)
    }

    /// Append a record, its entry and its keys. Its size and its place must be those that the functions above returned.
    pub fn write(&mut self, place: &Place, record: &Fields<'_>) -> Option<()> {
        let queue = self.known_queues.get_mut(place.queue)?;
        let topic = self.known_topics.get(queue.topic)?;
        let body_bytes = i32::try_from(record.body.len()).ok()?;
        let to = &mut self.records;
        self.last_at = to.len();
        to.extend_from_slice(&place.stated_size.to_be_bytes());
        to.extend_from_slice(&MESSAGE_MAGIC.to_be_bytes());
        to.extend_from_slice(&record.body_crc.to_be_bytes());
        to.extend_from_slice(&queue.id.to_be_bytes());
        to.extend_from_slice(&record.flag.to_be_bytes());
        to.extend_from_slice(&place.number.to_be_bytes());
        to.extend_from_slice(&place.offset.to_be_bytes());
        to.extend_from_slice(&record.sys_flag.to_be_bytes());
        for (time_ms, host) in [(record.born_ms, record.born_host), (self.store_ms, record.store_host)] {
            to.extend_from_slice(&time_ms.to_be_bytes());
            to.extend_from_slice(host);
        }
        to.extend_from_slice(&record.reconsume_times.to_be_bytes());
        to.extend_from_slice(&record.prepared.to_be_bytes());
        to.extend_from_slice(&body_bytes.to_be_bytes());
        to.extend_from_slice(record.body);
        to.push(topic.text.len() as u8);
        to.extend_from_slice(topic.text.as_bytes());
        to.extend_from_slice(&(record.properties.len() as u16).to_be_bytes());
        to.extend_from_slice(record.properties);
        if queue.count == 0 {
            queue.first_at = place.offset;
        }
        (queue.last_at, queue.count) = (place.offset, queue.count + 1);
        let code = record.due_ms.unwrap_or_else(|| records::code_of(record.pairs));
        records::add_coded_entry(&mut queue.entries, place.offset, place.stated_size, code);
        records::add_keys(&mut self.keys, topic.key_base, record.pairs, place.offset, self.store_ms);
        Some(())
    }

    /// Return the index of a topic; None if it needs rules.
    pub fn topic(&mut self, text: &str) -> Option<usize> {
        let known = self.known_topics.iter().position(|topic| topic.text == text && !topic.is_closed);
        if known.is_some() {
            return known;
        }
        if text.len() > MAX_TOPIC_BYTES
            || text.starts_with(&self.encoder.retry_prefix)
            || self.encoder.closed.iter().any(|closed| closed == text)
        {
            return None;
        }
        let py = self.py;
        let config = self.topics.get_item(text).ok()??;
        let filter = config.getattr(intern!(py, "topic_filter_type")).ok()?;
        if filter.cast::<PyString>().ok()?.to_cow().ok()? == MULTI_TAG
            || config.getattr(intern!(py, "order")).ok()?.extract().ok()?
        {
            return None;
        }
        let written: i32 = config.getattr(intern!(py, "write_queue_nums")).ok()?.extract().ok()?;
        let read: i32 = config.getattr(intern!(py, "read_queue_nums")).ok()?.extract().ok()?;
        Some(self.new_topic(text, written.max(read), false))
    }

    /// Return the index of a topic in which only the broker stores records, whatever its number of queues.
    pub fn closed_topic(&mut self, text: &str) -> usize {
        let known = self.known_topics.iter().position(|topic| topic.text == text && topic.is_closed);
        known.unwrap_or_else(|| self.new_topic(text, i32::MAX, true))
    }

    /// Return whether the account that signs the requests may send to a topic; true without one.
    pub fn may_send_to(&self, topic: &str) -> bool {
        self.signer.is_none_or(|signer| signer.may_send_to(topic))
    }

    /// Return the account that signs the requests.
    pub fn account(&self) -> Option<&'a str> {
        self.signer.map(|signer| signer.access_key.as_str())
    }

    /// Return whether a topic has a configuration.
    pub fn has_topic(&self, text: &str) -> bool {
        self.topics.contains(text).unwrap_or(false)
    }

    fn new_topic(&mut self, text: &str, queues: i32, is_closed: bool) -> usize {
        self.known_topics.push(Topic {
            text: text.to_owned(),
            name: PyString::new(self.py, text),
            key_base: records::key_base(text),
            is_closed,
            queues,
            messages: 0,
            bytes: 0,
            elsewhere: 0,
            copies: 0,
            copied_bytes: 0,
        });
        self.known_topics.len() - 1
    }

    /// Return whether a topic has a queue of this id.
    pub fn is_queue_of(&self, topic: usize, id: i32) -> bool {
        self.known_topics.get(topic).is_some_and(|topic| (0..topic.queues).contains(&id))
    }

    /// Return the index of a queue; None if it does not exist.
    pub fn queue(&mut self, topic: usize, id: i32) -> Option<usize> {
        let known = self.known_queues.iter().position(|queue| queue.id == id && queue.topic == topic);
        if known.is_some() {
            return known;
        }
        if !self.is_queue_of(topic, id) || self.known_queues.len() == MAX_QUEUES {
            return None;
        }
        let py = self.py;
        let name = self.known_topics.get(topic)?.name.as_any();
        let key = PyTuple::new(py, [name, id.into_pyobject(py).ok()?.as_any()]).ok()?;
        let first = self.queues.get_item(key).ok()??.getattr(intern!(py, "max_number")).ok()?.extract().ok()?;
        self.known_queues.push(Queue { topic, id, first, count: 0, first_at: 0, last_at: 0, entries: Vec::new() });
        Some(self.known_queues.len() - 1)
    }
}

/// Append a response.
fn respond(to: &mut Vec<u8>, parts: &Answer, place: &Place, send: &Send<'_>, handle: Option<&str>) {
    let start = to.len();
    to.extend_from_slice(&[0; 8]);
    to.extend_from_slice(&parts.to_offset);
    to.extend(hex::digits(place.offset, OFFSET_DIGITS));
    to.extend_from_slice(&parts.to_queue_id);
    to.extend_from_slice(send.queue_id.to_string().as_bytes());
    to.extend_from_slice(&parts.to_queue_offset);
    to.extend_from_slice(place.number.to_string().as_bytes());
    if let Some(handle) = handle {
        for part in [&parts.to_handle[..], handle.as_bytes(), &parts.after_handle] {
            to.extend_from_slice(part);
        }
    } else {
        to.extend_from_slice(&parts.to_opaque);
    }
    to.extend_from_slice(send.opaque.to_string().as_bytes());
    to.extend_from_slice(&parts.end);
    let header_bytes = (to.len() - start - 8) as u32;
    for (at, word) in [(start, header_bytes + 4), (start + 4, header_bytes)] {
        to[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }
}
