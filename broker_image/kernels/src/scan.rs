//! Scan of a piece of the log for plain records (twin: delaymq/store/recovery/plain_scan.py).

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::batch::{BODY_CRC_MASK, FIXED_BYTES, HOST_MASK, MAX_TOPIC_BYTES, MESSAGE_MAGIC, TRANSACTION_MASK};
use crate::heads::{HEAD_BYTES, i32_at, i64_at};
use crate::properties::{self, Pair};
use crate::records;

/// Queues of a piece are searched one by one.
const MAX_QUEUES: usize = 64;

/// Topic, queue id, queue offset of the first record, number of records, physical offsets of the first and the last
/// record, entries.
type Queue<'py> = (String, i32, i64, i64, i64, i64, Bound<'py, PyBytes>);

/// Bytes read, records, last offset, last CRC, the last three store times in ms, queues, keys for the index.
type Scanned<'py> = (usize, u64, i64, u32, (i64, i64, i64), Vec<Queue<'py>>, Bound<'py, PyBytes>);

/// Scanner that stops at records which concern others than queues and index.
#[pyclass(frozen, module = "delaymq_kernels")]
pub struct LogScanner {
    topics: Vec<String>,
    /// Names of properties.
    names: Vec<String>,
    /// Texts that the properties must not contain anywhere.
    texts: Vec<String>,
    check_crc: bool,
    /// Whether entries and keys are wanted. Names of properties are not compared otherwise.
    wants_entries: bool,
}

#[pymethods]
impl LogScanner {
    #[new]
    fn new(topics: Vec<String>, names: Vec<String>, texts: Vec<String>, check_crc: bool, wants_entries: bool) -> Self {
        Self { topics, names, texts, check_crc, wants_entries }
    }

    /// Return what the plain records at the start of `piece`, which begins at physical offset `base`, contain.
    ///
    /// The scan ends before the first record that is incomplete, damaged, not plain, or not the next one of its queue.
    /// `latest_ms` is the highest store time that is believed, `times` are the store times of the three records before.
    fn scan<'py>(
        &self,
        py: Python<'py>,
        piece: &[u8],
        base: i64,
        latest_ms: i64,
        times: (i64, i64, i64),
    ) -> Scanned<'py> {
        let mut queues: Vec<Found<'_>> = Vec::new();
        let (mut at, mut count, mut last_offset, mut last_crc, mut times) = (0, 0, -1, 0, times);
        let (mut keys, mut pairs) = (Vec::new(), Vec::new());
        while let Some(record) = self.plain_record(&piece[at..], base.wrapping_add(at as i64), latest_ms, &mut pairs) {
            if !note(&mut queues, &record, &pairs, self.wants_entries) {
                break;
            }
            if self.wants_entries {
                let key_base = records::key_base(record.topic);
                records::add_keys(&mut keys, key_base, &pairs, record.offset, record.store_ms);
            }
            (last_offset, last_crc, times) = (record.offset, record.crc, (times.1, times.2, record.store_ms));
            count += 1;
            at += record.size as usize;
        }
        let queues = queues
            .into_iter()
            .map(|found| {
                let topic = found.topic.to_owned();
                let number = found.next - found.count;
                (topic, found.id, number, found.count, found.first, found.last, PyBytes::new(py, &found.entries))
            })
            .collect();
        (at, count, last_offset, last_crc, times, queues, PyBytes::new(py, &keys))
    }
}

struct Record<'a> {
    offset: i64,
    size: i32,
    crc: u32,
    queue_id: i32,
    queue_offset: i64,
    store_ms: i64,
    topic: &'a str,
}

/// Records of one queue with consecutive queue offsets.
struct Found<'a> {
    topic: &'a str,
    id: i32,
    /// Queue offset of the next record.
    next: i64,
    count: i64,
    first: i64,
    last: i64,
    entries: Vec<u8>,
}

/// Add a record to its queue. Return false if it is not the next one, or of one queue too many.
fn note<'a>(queues: &mut Vec<Found<'a>>, record: &Record<'a>, pairs: &[Pair<'a>], wants_entries: bool) -> bool {
    let known = queues.iter().position(|each| each.id == record.queue_id && each.topic == record.topic);
    if known.is_none() && queues.len() == MAX_QUEUES {
        return false;
    }
    let Some(next) = record.queue_offset.checked_add(1) else { return false };
    let index = known.unwrap_or(queues.len());
    if known.is_none() {
        queues.push(Found {
            topic: record.topic,
            id: record.queue_id,
            next: record.queue_offset,
            count: 0,
            first: record.offset,
            last: record.offset,
            entries: Vec::new(),
        });
    }
    let queue = &mut queues[index];
    if queue.next != record.queue_offset {
        return false;
    }
    queue.next = next;
    queue.count += 1;
    queue.last = record.offset;
    if wants_entries {
        records::add_entry(&mut queue.entries, record.offset, record.size, pairs);
    }
    true
}

impl LogScanner {
    /// Return the record at the start of `data`, whose properties `pairs` receives; None if the scan ends here.
    fn plain_record<'a>(
        &self,
        data: &'a [u8],
        offset: i64,
        latest_ms: i64,
        pairs: &mut Vec<Pair<'a>>,
    ) -> Option<Record<'a>> {
        let head: &[u8; HEAD_BYTES] = data.first_chunk()?;
        let (size, sys_flag) = (i32_at(head, 0), i32_at(head, 36));
        let (queue_offset, stated_offset, store_ms) = (i64_at(head, 20), i64_at(head, 28), i64_at(head, 56));
        let is_message = i32_at(head, 4) as u32 == MESSAGE_MAGIC
            && stated_offset == offset
            && sys_flag & (HOST_MASK | TRANSACTION_MASK) == 0
            && (0..=latest_ms).contains(&store_ms);
        let length = usize::try_from(size).ok()?;
        if !is_message || length < FIXED_BYTES {
            return None;
        }
        let body_bytes = usize::try_from(i32_at(head, 84)).ok()?;
        let (body, tail) = data.get(HEAD_BYTES..length)?.split_at_checked(body_bytes)?;
        let (topic_bytes, tail) = tail.split_first()?;
        let (topic, tail) = tail.split_at_checked(usize::from(*topic_bytes))?;
        let (properties_bytes, raw) = tail.split_first_chunk::<2>()?;
        let crc = i32_at(head, 8) as u32;
        if topic.len() > MAX_TOPIC_BYTES
            || i16::from_be_bytes(*properties_bytes) < 0
            || usize::from(u16::from_be_bytes(*properties_bytes)) != raw.len()
            || raw.contains(&0)
            || (self.check_crc && crc32fast::hash(body) & BODY_CRC_MASK != crc)
        {
            return None;
        }
        let (topic, text) = (std::str::from_utf8(topic).ok()?, std::str::from_utf8(raw).ok()?);
        if self.topics.iter().any(|ruled| ruled == topic) || self.texts.iter().any(|ruled| text.contains(ruled)) {
            return None;
        }
        pairs.clear();
        let is_plain = !self.wants_entries
            || (properties::parse(text, pairs)
                && pairs.iter().all(|pair| !self.names.iter().any(|ruled| ruled == pair.0)));
        let queue_id = i32_at(head, 12);
        is_plain.then_some(Record { offset, size, crc, queue_id, queue_offset, store_ms, topic })
    }
}
