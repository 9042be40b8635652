//! Records in the body of a pull response (twin: delaymq/client/plain_records.py).

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::batch::{BODY_CRC_MASK, HOST_MASK, MESSAGE_MAGIC};
use crate::heads::{HEAD_BYTES, i32_at, i64_at};

/// Head, queue offset, sys flag, body, properties.
type Plain<'py> = (Bound<'py, PyBytes>, i64, i32, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// Return the plain records of a queue from a position of `data` on, and the position after them.
///
/// `topic` is the queue's, after its length. The first record that is damaged, incomplete, of another queue or with an
/// IPv6 host ends them.
#[pyfunction]
pub fn split_plain<'py>(
    py: Python<'py>,
    data: &[u8],
    at: usize,
    topic: &[u8],
    queue_id: i32,
) -> (Vec<Plain<'py>>, usize) {
    let mut records = Vec::new();
    let mut rest = data.get(at..).unwrap_or_default();
    while let Some((record, after)) = first(rest, topic, queue_id) {
        records.push((
            PyBytes::new(py, record.head),
            i64_at(record.head, 20),
            i32_at(record.head, 36),
            PyBytes::new(py, record.body),
            PyBytes::new(py, record.properties),
        ));
        rest = after;
    }
    (records, data.len() - rest.len())
}

struct Parts<'a> {
    head: &'a [u8; HEAD_BYTES],
    body: &'a [u8],
    properties: &'a [u8],
}

/// Return the first record and what follows it; None if it is not plain.
fn first<'a>(data: &'a [u8], topic: &[u8], queue_id: i32) -> Option<(Parts<'a>, &'a [u8])> {
    let head: &[u8; HEAD_BYTES] = data.first_chunk()?;
    if i32_at(head, 4) as u32 != MESSAGE_MAGIC || i32_at(head, 36) & HOST_MASK != 0 || i32_at(head, 12) != queue_id {
        return None;
    }
    let (record, after) = data.split_at_checked(usize::try_from(i32_at(head, 0)).ok()?)?;
    let body_bytes = usize::try_from(i32_at(head, 84)).ok()?;
    let (body, tail) = record.get(HEAD_BYTES..)?.split_at_checked(body_bytes)?;
    let (length, properties) = tail.strip_prefix(topic)?.split_first_chunk::<2>()?;
    let is_valid = usize::try_from(i16::from_be_bytes(*length)).ok()? == properties.len()
        && crc32fast::hash(body) & BODY_CRC_MASK == i32_at(head, 8) as u32;
    is_valid.then_some((Parts { head, body, properties }, after))
}
