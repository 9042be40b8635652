//! Copies of due messages for the log (reference: delaymq/broker/delivery/copying/plain_copies.py).

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::batch::{BODY_CRC_MASK, FIXED_BYTES, MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES, MESSAGE_MAGIC};
use crate::heads::{HEAD_BYTES, i32_at, i64_at};
use crate::properties;
use crate::records;

const MAX_QUEUE_ID_DIGITS: usize = 4;
const DELIVERED: &str = "delivered";

/// Queue id, queue offset of the first copy, entries.
type Queue<'py> = (usize, i64, Bound<'py, PyBytes>);

/// Number of copies, position of the last one, records, keys for the index, queues, and for each stretch of equal due
/// times: due time in ms, number of copies, size of their records in bytes.
type Copied<'py> = (usize, usize, Bound<'py, PyBytes>, Bound<'py, PyBytes>, Vec<Queue<'py>>, Vec<(i64, usize, usize)>);

/// Encoder of copies of due messages whose records are as DelayMQ wrote them.
#[pyclass(frozen, module = "delaymq_kernels")]
pub struct CopyEncoder {
    /// Topics of records of messages with a delay level, and of timed messages.
    topics: (String, String),
    names: Names,
    /// Names of properties of messages that need rules, with a delay level or timed.
    ruled: (Vec<String>, Vec<String>),
    unusual_flags: i32,
    /// Maximum size of what is added to the properties of a message.
    max_mark_bytes: usize,
}

/// Names of properties, from a tuple.
#[derive(FromPyObject)]
struct Names {
    #[pyo3(item(0))]
    mark: String,
    #[pyo3(item(1))]
    due: String,
    #[pyo3(item(2))]
    account: String,
    #[pyo3(item(3))]
    real_topic: String,
    #[pyo3(item(4))]
    real_queue_id: String,
    #[pyo3(item(5))]
    timer_out_ms: String,
}

#[pymethods]
impl CopyEncoder {
    /// `names` are those of mark, due time, account, real topic, real queue id, and stated due time.
    #[new]
    fn new(
        topics: (String, String),
        names: Names,
        ruled: (Vec<String>, Vec<String>),
        unusual_flags: i32,
        max_mark_bytes: usize,
    ) -> Self {
        Self { topics, names, ruled, unusual_flags, max_mark_bytes }
    }

    /// Return the copies of the first messages of `topic`, up to the first one that Python has to handle.
    ///
    /// `datas` are the records that `pendings` name. `level` is the delay level, and 0 for timed messages. `numbers` are
    /// the next queue offsets of the queues 0, 1 and so on, and -1 for those that do not exist.
    #[allow(clippy::too_many_arguments)]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        datas: &Bound<'py, PyList>,
        pendings: &Bound<'py, PyList>,
        topic: &str,
        level: i32,
        now_ms: i64,
        numbers: Vec<i64>,
        physical_offset: i64,
        store_ms: i64,
        room_bytes: usize,
    ) -> PyResult<Copied<'py>> {
        let mut writer = Writer {
            encoder: self,
            topic,
            key_base: records::key_base(topic),
            level,
            now_ms,
            physical_offset,
            store_ms,
            room_bytes,
            last_at: 0,
            queues: numbers.into_iter().map(|number| (number, number, Vec::new())).collect(),
            records: Vec::new(),
            keys: Vec::new(),
            sums: Vec::new(),
        };
        let mut count = 0;
        for (data, pending) in datas.iter().zip(pendings.iter()) {
            let pending = Pending::read(pending.cast::<PyTuple>()?)?;
            if writer.add(data.cast::<PyBytes>()?.as_bytes(), &pending).is_none() {
                break;
            }
            count += 1;
        }
        let Writer { last_at, queues, records, keys, sums, .. } = writer;
        let queues = queues.into_iter().enumerate().filter(|(_, queue)| !queue.2.is_empty());
        let queues = queues.map(|(id, (first, _, entries))| (id, first, PyBytes::new(py, &entries))).collect();
        Ok((count, last_at, PyBytes::new(py, &records), PyBytes::new(py, &keys), queues, sums))
    }
}

/// A pending message: due time in ms, physical offsets of its first and its current record, size of the latter.
struct Pending {
    due_ms: i64,
    identity: i64,
    record: i64,
    size: usize,
}

impl Pending {
    fn read(fields: &Bound<'_, PyTuple>) -> PyResult<Self> {
        Ok(Self {
            due_ms: fields.get_item(0)?.extract()?,
            identity: fields.get_item(1)?.extract()?,
            record: fields.get_item(2)?.extract()?,
            size: fields.get_item(3)?.extract()?,
        })
    }
}

/// The copies so far.
struct Writer<'a> {
    encoder: &'a CopyEncoder,
    topic: &'a str,
    key_base: u32,
    level: i32,
    now_ms: i64,
    physical_offset: i64,
    store_ms: i64,
    room_bytes: usize,
    last_at: usize,
    /// Of each queue: queue offset of the first copy and of the next one, entries.
    queues: Vec<(i64, i64, Vec<u8>)>,
    records: Vec<u8>,
    keys: Vec<u8>,
    sums: Vec<(i64, usize, usize)>,
}

impl Writer<'_> {
    /// Append the copy of a message. None if Python has to handle it; nothing is appended then.
    fn add(&mut self, data: &[u8], pending: &Pending) -> Option<()> {
        let encoder = self.encoder;
        let head: &[u8; HEAD_BYTES] = data.first_chunk()?;
        let (stated_size, sys_flag) = (i32_at(head, 0), i32_at(head, 36));
        let is_message = data.len() == pending.size
            && usize::try_from(stated_size).ok()? == pending.size
            && i32_at(head, 4) as u32 == MESSAGE_MAGIC
            && i64_at(head, 28) == pending.record
            && sys_flag & encoder.unusual_flags == 0
            && pending.due_ms >= 0;
        if !is_message {
            return None;
        }
        let body_bytes = i32_at(head, 84);
        let (body, tail) = data.get(HEAD_BYTES..)?.split_at_checked(usize::try_from(body_bytes).ok()?)?;
        let (topic_bytes, tail) = tail.split_first()?;
        let (topic, tail) = tail.split_at_checked(usize::from(*topic_bytes))?;
        let (properties_bytes, raw) = tail.split_first_chunk::<2>()?;
        let expected = if self.level == 0 { &encoder.topics.1 } else { &encoder.topics.0 };
        let body_crc = i32_at(head, 8) as u32;
        if topic != expected.as_bytes()
            || usize::from(u16::from_be_bytes(*properties_bytes)) != raw.len()
            || raw.len() + encoder.max_mark_bytes > MAX_PROPERTIES_BYTES
            || crc32fast::hash(body) & BODY_CRC_MASK != body_crc
        {
            return None;
        }
        let text = std::str::from_utf8(raw).ok()?;
        let mut pairs = Vec::with_capacity(16);
        if !properties::parse(text, &mut pairs) {
            return None;
        }
        let names = &encoder.names;
        let ruled = if self.level == 0 { &encoder.ruled.1 } else { &encoder.ruled.0 };
        if properties::value_of(&pairs, &names.real_topic) != Some(self.topic)
            || pairs.iter().any(|pair| ruled.iter().any(|name| name == pair.0))
        {
            return None;
        }
        let queue_id = queue_id_of(properties::value_of(&pairs, &names.real_queue_id)?)?;
        let queue_offset = self.queues.get(queue_id).map(|queue| queue.1).filter(|number| *number >= 0)?;
        let without_account;
        let mut kept = text;
        if properties::value_of(&pairs, &names.account).is_some() {
            without_account = without_pair(text, &names.account)?;
            kept = &without_account;
        }
        let at = self.records.len();
        let offset = self.physical_offset.checked_add(i64::try_from(at).ok()?)?;
        let mark = if self.level == 0 {
            let due_ms = pending.due_ms.to_string();
            if properties::value_of(&pairs, &names.timer_out_ms) != Some(due_ms.as_str()) {
                return None; // it was moved
            }
            kept = without_last(kept, &names.due)?;
            timed_mark(offset, self.now_ms, pending)
        } else {
            let (from_queue, from_offset) = (i32_at(head, 12), i64_at(head, 20));
            let due = format!("{:016}:{from_queue:04}:{from_offset:020}", pending.due_ms);
            if from_queue != self.level - 1
                || from_offset < 0
                || properties::value_of(&pairs, &names.due) != Some(due.as_str())
            {
                return None;
            }
            format!("{DELIVERED}:{from_queue}:{from_offset}:{}", pending.record)
        };
        let property_bytes = kept.len() + 2 + names.mark.len() + mark.len();
        let size = FIXED_BYTES + body.len() + self.topic.len() + property_bytes;
        if kept.is_empty() || at + size > self.room_bytes || self.topic.len() > MAX_TOPIC_BYTES {
            return None;
        }
        let stated_size = i32::try_from(size).ok()?;
        let next = queue_offset.checked_add(1)?;
        let to = &mut self.records;
        to.extend_from_slice(&stated_size.to_be_bytes());
        to.extend_from_slice(&head[4..12]); // magic, CRC
        to.extend_from_slice(&i32::try_from(queue_id).ok()?.to_be_bytes());
        to.extend_from_slice(&head[16..20]); // flag
        to.extend_from_slice(&queue_offset.to_be_bytes());
        to.extend_from_slice(&offset.to_be_bytes());
        to.extend_from_slice(&head[36..56]); // system flag, born time and host
        to.extend_from_slice(&self.store_ms.to_be_bytes());
        to.extend_from_slice(&head[64..HEAD_BYTES]); // store host and what follows
        to.extend_from_slice(body);
        to.push(self.topic.len() as u8);
        to.extend_from_slice(self.topic.as_bytes());
        to.extend_from_slice(&(property_bytes as u16).to_be_bytes());
        for part in [kept, "\x02", &names.mark, "\x01", &mark] {
            to.extend_from_slice(part.as_bytes());
        }
        self.last_at = at;
        let queue = self.queues.get_mut(queue_id)?;
        queue.1 = next;
        records::add_entry(&mut queue.2, offset, stated_size, &pairs);
        records::add_keys(&mut self.keys, self.key_base, &pairs, offset, self.store_ms);
        match self.sums.last_mut() {
            Some(sum) if sum.0 == pending.due_ms => {
                sum.1 += 1;
                sum.2 += size;
            }
            _ => self.sums.push((pending.due_ms, 1, size)),
        }
        Some(())
    }
}

/// Return a queue id that is written without leading zeros.
pub fn queue_id_of(text: &str) -> Option<usize> {
    let is_number = text.len() <= MAX_QUEUE_ID_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number || (text.len() > 1 && text.starts_with('0')) {
        return None;
    }
    text.parse().ok()
}

/// Return the properties without the first pair of this name; None if it is the first of all.
fn without_pair(text: &str, name: &str) -> Option<String> {
    let at = text.find(&format!("\x02{name}\x01"))?;
    let end = text[at + 1..].find('\x02').map_or(text.len(), |end| at + 1 + end);
    Some(format!("{}{}", &text[..at], &text[end..]))
}

/// Return the properties without the last pair; None if it has another name, or is the only one.
fn without_last<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let at = text.rfind('\x02')?;
    let pair = text[at + 1..].strip_prefix(name)?;
    (at > 0 && pair.starts_with('\x01')).then(|| &text[..at])
}

/// Return the mark of a copy at `offset` (twins: `end_of` and `Statement.at` in delaymq/message/timed_marks.py).
fn timed_mark(offset: i64, now_ms: i64, pending: &Pending) -> String {
    let Pending { due_ms, identity, record, .. } = pending;
    let stated = if record == identity { String::new() } else { record.to_string() };
    let mark = format!("2:{offset:020}:{DELIVERED}:{now_ms}:{identity}:{stated}:{due_ms}:::");
    let crc = crc32fast::hash(mark.as_bytes());
    format!("{mark}:{crc:08x}")
}
