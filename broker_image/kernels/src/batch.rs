//! Encoding of a batch for the log (twin: delaymq/broker/sending/plain_batches.py).

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::hex;
use crate::properties::{self, Pair};
use crate::records;

pub const MESSAGE_MAGIC: u32 = 0xDAA3_20A7;
pub const BODY_CRC_MASK: u32 = 0x7FFF_FFFF;
/// Size of a record without body, topic and properties, with IPv4 hosts.
pub const FIXED_BYTES: usize = 91;
pub const HOST_MASK: i32 = 0x30;
pub const TRANSACTION_MASK: i32 = 0xC;
pub const MAX_TOPIC_BYTES: usize = 127;
pub const MAX_PROPERTIES_BYTES: usize = 32_767;
/// Hexadecimal digits of the physical offset in a message id.
pub const OFFSET_DIGITS: u32 = 16;
/// Bytes before the body of a message in a batch: size, magic, CRC, flag, size of the body.
const BATCH_HEAD_BYTES: usize = 20;

/// Count, position of the last record, records, queue entries, keys for the index, message ids.
type Encoded<'py> = (usize, usize, Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>, String);

/// Encoder of batches whose messages need no rules but those given to the constructor.
#[pyclass(frozen, module = "delaymq_kernels")]
pub struct BatchEncoder {
    /// Names of properties that need rules of the broker.
    ruled: Vec<String>,
    /// Names with this prefix need rules, too.
    own_prefix: String,
}

#[pymethods]
impl BatchEncoder {
    #[new]
    fn new(ruled: Vec<String>, own_prefix: String) -> Self {
        Self { ruled, own_prefix }
    }

    /// Return the encoded batch, or None if Python has to handle it.
    #[allow(clippy::too_many_arguments)]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        body: &[u8],
        most: usize,
        shared: &Bound<'py, PyDict>,
        topic: &str,
        queue_id: i32,
        queue_offset: i64,
        physical_offset: i64,
        sys_flag: i32,
        born_ms: i64,
        born_host: &[u8],
        store_ms: i64,
        store_host: &[u8],
        reconsume_times: i32,
        max_record_bytes: usize,
        room_bytes: usize,
        id_prefix: &str,
    ) -> Option<Encoded<'py>> {
        let mut owned: Vec<(Bound<'py, PyString>, Bound<'py, PyString>)> = Vec::with_capacity(shared.len());
        for (name, value) in shared {
            owned.push((name.cast_into().ok()?, value.cast_into().ok()?));
        }
        let mut pairs: Vec<Pair<'_>> = Vec::with_capacity(owned.len());
        for (name, value) in &owned {
            pairs.push((name.to_str().ok()?, value.to_str().ok()?));
        }
        let is_plain = born_host.len() == 8
            && store_host.len() == 8
            && sys_flag & (HOST_MASK | TRANSACTION_MASK) == 0
            && topic.len() <= MAX_TOPIC_BYTES
            && pairs.iter().all(|pair| self.is_free(pair.0));
        if !is_plain {
            return None;
        }
        let mut writer = Writer {
            topic,
            key_base: records::key_base(topic),
            queue_id,
            queue_offset,
            physical_offset,
            sys_flag,
            born: (born_ms, born_host),
            store: (store_ms, store_host),
            reconsume_times,
            max_record_bytes,
            room_bytes,
            id_prefix,
            last_at: 0,
            records: Vec::new(),
            entries: Vec::new(),
            keys: Vec::new(),
            ids: String::new(),
        };
        writer.records.try_reserve(body.len().saturating_mul(5) / 4).ok()?;
        let (mut rest, mut count) = (body, 0);
        let mut merged = Vec::new();
        while !rest.is_empty() {
            let message;
            (message, rest) = Message::read(rest)?;
            merged.clear();
            if count == most || !self.merge(message.properties, &pairs, &mut merged) {
                return None;
            }
            writer.add(count, &message, &merged)?;
            count += 1;
        }
        if count == 0 {
            return None;
        }
        let Writer { last_at, records, entries, keys, ids, .. } = writer;
        Some((count, last_at, PyBytes::new(py, &records), PyBytes::new(py, &entries), PyBytes::new(py, &keys), ids))
    }
}

impl BatchEncoder {
    fn is_free(&self, name: &str) -> bool {
        !name.starts_with(&self.own_prefix) && !self.ruled.iter().any(|ruled| ruled == name)
    }

    /// Set `merged` to a message's pairs and those of the batch, which take precedence; false if Python has to do so.
    fn merge<'a>(&self, own: &'a str, shared: &[Pair<'a>], merged: &mut Vec<Pair<'a>>) -> bool {
        !own.contains('\0')
            && properties::parse(own, merged)
            && merged.iter().all(|pair| self.is_free(pair.0))
            && shared.iter().all(|pair| properties::put(merged, *pair))
    }
}

/// A message of a batch.
struct Message<'a> {
    flag: i32,
    body: &'a [u8],
    properties: &'a str,
}

impl<'a> Message<'a> {
    /// Split the first message off `batch`; None if it is malformed or its properties are not UTF-8.
    fn read(batch: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let size = u32_at(batch, 0)? as usize;
        let flag = u32_at(batch, 12)? as i32;
        let body_bytes = u32_at(batch, 16)? as usize;
        let (message, rest) = batch.split_at_checked(size)?;
        let (body, tail) = message.get(BATCH_HEAD_BYTES..)?.split_at_checked(body_bytes)?;
        let (length, properties) = tail.split_first_chunk::<2>()?;
        if properties.len() != usize::from(u16::from_be_bytes(*length)) || properties.len() > MAX_PROPERTIES_BYTES {
            return None;
        }
        let properties = std::str::from_utf8(properties).ok()?;
        Some((Self { flag, body, properties }, rest))
    }
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// Records, queue entries, keys and ids of the messages so far, and the fields that all messages share.
struct Writer<'a> {
    topic: &'a str,
    /// Hash of the topic and the separator, with which the hash of each key begins.
    key_base: u32,
    queue_id: i32,
    queue_offset: i64,
    physical_offset: i64,
    sys_flag: i32,
    born: (i64, &'a [u8]),
    store: (i64, &'a [u8]),
    reconsume_times: i32,
    max_record_bytes: usize,
    room_bytes: usize,
    id_prefix: &'a str,
    last_at: usize,
    records: Vec<u8>,
    entries: Vec<u8>,
    keys: Vec<u8>,
    ids: String,
}

impl Writer<'_> {
    /// Append message `number`. None if it does not fit.
    fn add(&mut self, number: usize, message: &Message<'_>, pairs: &[Pair<'_>]) -> Option<()> {
        let properties_bytes = properties::encoded_bytes(pairs);
        let size = FIXED_BYTES + message.body.len() + self.topic.len() + properties_bytes;
        let at = self.records.len();
        if properties_bytes > MAX_PROPERTIES_BYTES || size > self.max_record_bytes || at + size > self.room_bytes {
            return None;
        }
        let (stated_size, body_bytes) = (i32::try_from(size).ok()?, i32::try_from(message.body.len()).ok()?);
        let offset = self.physical_offset.checked_add(i64::try_from(at).ok()?)?;
        let queue_offset = self.queue_offset.checked_add(i64::try_from(number).ok()?)?;
        let to = &mut self.records;
        to.extend_from_slice(&stated_size.to_be_bytes());
        to.extend_from_slice(&MESSAGE_MAGIC.to_be_bytes());
        to.extend_from_slice(&(crc32fast::hash(message.body) & BODY_CRC_MASK).to_be_bytes());
        to.extend_from_slice(&self.queue_id.to_be_bytes());
        to.extend_from_slice(&message.flag.to_be_bytes());
        to.extend_from_slice(&queue_offset.to_be_bytes());
        to.extend_from_slice(&offset.to_be_bytes());
        to.extend_from_slice(&self.sys_flag.to_be_bytes());
        for (time_ms, host) in [self.born, self.store] {
            to.extend_from_slice(&time_ms.to_be_bytes());
            to.extend_from_slice(host);
        }
        to.extend_from_slice(&self.reconsume_times.to_be_bytes());
        to.extend_from_slice(&0_i64.to_be_bytes()); // prepared transaction offset
        to.extend_from_slice(&body_bytes.to_be_bytes());
        to.extend_from_slice(message.body);
        to.push(self.topic.len() as u8);
        to.extend_from_slice(self.topic.as_bytes());
        to.extend_from_slice(&(properties_bytes as u16).to_be_bytes());
        properties::encode(pairs, to);
        self.last_at = at;
        records::add_entry(&mut self.entries, offset, stated_size, pairs);
        records::add_keys(&mut self.keys, self.key_base, pairs, offset, self.store.0);
        hex::add_id(&mut self.ids, self.id_prefix, offset, OFFSET_DIGITS);
        Some(())
    }
}
