//! Half messages, their commits and their rollbacks (reference: delaymq/broker/transactions/end_transaction.py).

use pyo3::buffer::PyBuffer;
use pyo3::intern;
use pyo3::prelude::*;

use crate::batch::{BODY_CRC_MASK, HOST_MASK, MAX_PROPERTIES_BYTES, MESSAGE_MAGIC, TRANSACTION_MASK};
use crate::copies::queue_id_of;
use crate::heads::{HEAD_BYTES, i32_at, i64_at};
use crate::properties::{self, Pair, value_of};
use crate::requests::{End, Send};
use crate::sends::{Fields, Message, Writer};

const PREPARED: i32 = 4;
const COMMIT: i32 = 8;
const ROLLBACK: i32 = 12;
const NO_FLAG: i32 = 0;
const HALF_QUEUE: i32 = 0;
/// Half messages that one call reads. Requests of a few bytes can name half messages of megabytes.
const MAX_READ_BYTES: usize = 256 * 1024;

/// What transactions need, from a tuple.
#[derive(FromPyObject)]
pub struct Rules {
    #[pyo3(item(0))]
    half_topic: String,
    #[pyo3(item(1))]
    op_topic: String,
    #[pyo3(item(2))]
    names: Names,
    /// Names of properties of half messages that need rules.
    #[pyo3(item(3))]
    ruled: Vec<String>,
    /// Encoded properties of the op mark of a committed half message.
    #[pyo3(item(4))]
    committed_mark: String,
    /// Likewise, of one that was rolled back.
    #[pyo3(item(5))]
    rolled_back_mark: String,
    #[pyo3(item(6))]
    max_properties_bytes: usize,
}

/// Names of properties, from a tuple.
#[derive(FromPyObject)]
struct Names {
    #[pyo3(item(0))]
    prepared: String,
    #[pyo3(item(1))]
    group: String,
    #[pyo3(item(2))]
    real_topic: String,
    #[pyo3(item(3))]
    real_queue_id: String,
}

impl Writer<'_, '_> {
    /// Append the half message of a send to a topic. None if Python has to handle it; nothing is appended then.
    pub fn add_half<'s>(&mut self, send: &'s Send<'_>, topic: usize, mut pairs: Vec<Pair<'s>>) -> Option<()> {
        let encoder = self.encoder;
        let (rules, names) = (&encoder.transactions, &encoder.transactions.names);
        let is_half = send.sys_flag & TRANSACTION_MASK == PREPARED
            && value_of(&pairs, &names.prepared) == Some("true")
            && i64::try_from(send.body.len()).ok()? <= self.max_half_body_bytes
            && self.is_queue_of(topic, send.queue_id)
            && pairs.iter().all(|pair| self.is_free_in_half(pair))
            && self.has_topic(&rules.half_topic);
        if !is_half {
            return None;
        }
        let group = value_of(&pairs, &names.group)?;
        let wait = value_of(&pairs, &encoder.names.wait);
        pairs.retain(|pair| pair.0 != encoder.names.wait);
        let queue_id = send.queue_id.to_string();
        let mut pairs: Vec<Pair<'_>> = pairs; // those that are added live shorter
        let added = [
            (encoder.names.cluster.as_str(), Some(self.cluster)),
            (&encoder.names.wait, wait),
            (&names.real_topic, Some(&*send.topic)),
            (&names.real_queue_id, Some(queue_id.as_str())),
        ];
        properties::put_all(&mut pairs, added)?;
        if self.physical_offset == 0 {
            return None; // the offset 0 in a record does not prove an end
        }
        let half_topic = self.closed_topic(&rules.half_topic);
        let queue = self.queue(half_topic, HALF_QUEUE)?;
        let message =
            Message { pairs: &pairs, max_properties_bytes: rules.max_properties_bytes, due_ms: None, handle: None };
        let place = self.add_message(send, half_topic, queue, &message)?;
        self.count(half_topic, &place)?;
        self.steps.push((place.number, place.offset, send.born_ms, group.to_owned()));
        self.known_topics.get_mut(topic)?.elsewhere += 1;
        Some(())
    }

    /// Append the records that end a transaction. None if Python has to handle it; nothing is appended then.
    pub fn add_end(&mut self, end: &End<'_>) -> Option<()> {
        let encoder = self.encoder;
        let rules = &encoder.transactions;
        let mark = match end.outcome {
            COMMIT => &rules.committed_mark,
            ROLLBACK => &rules.rolled_back_mark,
            _ => return None,
        };
        if end.place <= 0 || self.ended.contains(&end.place) || self.pending_at(end.place)? != (end.number, 0) {
            return None;
        }
        let data = self.half_at(end.place)?;
        let half = Half::read(&data, end, &rules.half_topic)?;
        let mut pairs: Vec<Pair<'_>> = Vec::with_capacity(16);
        let text = std::str::from_utf8(half.properties).ok()?;
        if !properties::parse(text, &mut pairs)
            || !pairs.iter().all(|pair| self.is_free_in_half(pair))
            || value_of(&pairs, &rules.names.group) != Some(&*end.group)
            || !self.may_send_to(value_of(&pairs, &rules.names.real_topic).unwrap_or_default())
        {
            return None;
        }
        let op_topic = self.closed_topic(&rules.op_topic);
        let number = end.number.to_string();
        let mark_bytes = self.size(op_topic, number.as_bytes(), mark.len())?;
        let mut mark_pairs = Vec::new();
        if mark_bytes > self.max_record_bytes || !properties::parse(mark, &mut mark_pairs) {
            return None;
        }
        let mut copy = None;
        let mut copied_bytes = 0;
        if end.outcome == COMMIT {
            let topic = self.topic(value_of(&pairs, &rules.names.real_topic)?)?;
            let queue_id = queue_id_of(value_of(&pairs, &rules.names.real_queue_id)?)?;
            let queue = self.queue(topic, i32::try_from(queue_id).ok()?)?;
            copied_bytes = self.size(topic, half.body, half.properties.len())?;
            copy = Some((topic, self.place(queue, copied_bytes, 0)?));
        }
        let op_queue = self.queue(op_topic, HALF_QUEUE)?;
        let mark_place = self.place(op_queue, mark_bytes, copied_bytes)?;
        if let Some((topic, place)) = copy {
            self.write(&place, &half.copy(&pairs, end.place))?;
            let topic = self.known_topics.get_mut(topic)?;
            (topic.copies, topic.copied_bytes) = (topic.copies + 1, topic.copied_bytes + copied_bytes);
        }
        let fields = Fields {
            flag: NO_FLAG,
            sys_flag: NO_FLAG,
            born_ms: self.now_ms,
            born_host: self.hosts.1,
            store_host: self.hosts.1,
            reconsume_times: 0,
            prepared: end.place,
            body: number.as_bytes(),
            body_crc: crc32fast::hash(number.as_bytes()) & BODY_CRC_MASK,
            properties: mark.as_bytes(),
            pairs: &mark_pairs,
            due_ms: None,
        };
        self.write(&mark_place, &fields)?;
        self.steps.push((mark_place.number, end.place, i64::from(end.outcome), String::new()));
        self.ended.push(end.place);
        Some(())
    }

    fn is_free_in_half(&self, pair: &Pair<'_>) -> bool {
        let rules = &self.encoder.transactions;
        pair.0 == rules.names.prepared
            || (self.encoder.is_free(pair) && !rules.ruled.iter().any(|ruled| ruled == pair.0))
    }

    /// Return queue offset and number of checks of the pending half message at a physical offset (twin:
    /// `PendingHalves.find`).
    fn pending_at(&self, place: i64) -> Option<(i64, u16)> {
        let py = self.py;
        let places_of = |number: usize| {
            let chunk = self.pending.get_item(number).ok()?;
            PyBuffer::<i64>::get(&chunk.getattr(intern!(py, "physical_offsets")).ok()?).ok()
        };
        let (mut low, mut high) = (0, self.pending.len());
        while low < high {
            let middle = (low + high) / 2;
            if places_of(middle)?.as_slice(py)?.first()?.get() <= place {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let number = low.checked_sub(1)?;
        let places = places_of(number)?;
        let places = places.as_slice(py)?;
        let index = places.partition_point(|each| each.get() < place);
        if places.get(index)?.get() != place {
            return None;
        }
        let chunk = self.pending.get_item(number).ok()?;
        let offsets = PyBuffer::<i64>::get(&chunk.getattr(intern!(py, "offsets")).ok()?).ok()?;
        let checks = PyBuffer::<u16>::get(&chunk.getattr(intern!(py, "checks")).ok()?).ok()?;
        Some((offsets.as_slice(py)?.get(index)?.get(), checks.as_slice(py)?.get(index)?.get()))
    }

    /// Return the bytes of the record at a physical offset, as many as it states. None outside the segment, and beyond the
    /// limit of what a call reads.
    fn half_at(&mut self, place: i64) -> Option<Vec<u8>> {
        let start = usize::try_from(place.checked_sub(self.log_base)?).ok()?;
        let end = self.physical_offset.min(self.halves_end);
        let end = usize::try_from(end.checked_sub(self.log_base)?).ok()?;
        if self.mapped.is_none() {
            self.mapped = PyBuffer::get(self.log).ok();
        }
        let rest = self.mapped.as_ref()?.as_slice(self.py)?.get(start..end)?;
        let [a, b, c, d, ..] = rest else { return None };
        let size = i32::from_be_bytes([a.get(), b.get(), c.get(), d.get()]);
        let size = usize::try_from(size).ok()?;
        let record = rest.get(..size)?;
        self.read_bytes += size;
        (self.read_bytes <= MAX_READ_BYTES).then(|| record.iter().map(|byte| byte.get()).collect())
    }
}

/// Parts of the record of a half message.
struct Half<'a> {
    head: &'a [u8; HEAD_BYTES],
    body: &'a [u8],
    properties: &'a [u8],
}

impl<'a> Half<'a> {
    /// Split the record of the half message that an end names. None if it is another record, damaged, or unusual.
    fn read(data: &'a [u8], end: &End<'_>, half_topic: &str) -> Option<Self> {
        let head: &[u8; HEAD_BYTES] = data.first_chunk()?;
        let is_named = i32_at(head, 4) as u32 == MESSAGE_MAGIC
            && i32_at(head, 12) == HALF_QUEUE
            && i64_at(head, 20) == end.number
            && i64_at(head, 28) == end.place
            && i32_at(head, 36) & HOST_MASK == 0;
        if !is_named {
            return None;
        }
        let body_bytes = usize::try_from(i32_at(head, 84)).ok()?;
        let (body, tail) = data.get(HEAD_BYTES..)?.split_at_checked(body_bytes)?;
        let (topic_bytes, tail) = tail.split_first()?;
        let (topic, tail) = tail.split_at_checked(usize::from(*topic_bytes))?;
        let (properties_bytes, properties) = tail.split_first_chunk::<2>()?;
        let is_sound = topic == half_topic.as_bytes()
            && usize::from(u16::from_be_bytes(*properties_bytes)) == properties.len()
            && properties.len() <= MAX_PROPERTIES_BYTES
            && crc32fast::hash(body) & BODY_CRC_MASK == i32_at(head, 8) as u32;
        is_sound.then_some(Self { head, body, properties })
    }

    /// Return the committed copy, whose prepared offset proves the commit.
    fn copy(&self, pairs: &'a [Pair<'a>], place: i64) -> Fields<'a> {
        let head = self.head;
        Fields {
            flag: i32_at(head, 16),
            sys_flag: i32_at(head, 36) & !(TRANSACTION_MASK | HOST_MASK) | COMMIT,
            born_ms: i64_at(head, 40),
            born_host: &head[48..56],
            store_host: &head[64..72],
            reconsume_times: i32_at(head, 72),
            prepared: place,
            body: self.body,
            body_crc: i32_at(head, 8) as u32,
            properties: self.properties,
            pairs,
            due_ms: None,
        }
    }
}
