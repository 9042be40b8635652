//! Collection of a queue's records for a pull (twin: delaymq_testing/store/record_collector.py).

use pyo3::buffer::{PyBuffer, ReadOnlyCell};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::batch::{FIXED_BYTES, MESSAGE_MAGIC};
use crate::heads::bytes_at;

const ENTRY_BYTES: usize = 20;
const CODE_BYTES: usize = 4;
const QUEUE_OFFSET_AT: usize = 20;

/// Return how many of a queue's `entries` were examined, how many of them match, and the records that these name.
///
/// An entry matches if the low 32 bits of its tags code are among `codes`, in ascending order; any entry if there are
/// none. The entry with which there would be more than `limit` records, or more than `max_bytes`, is not examined any
/// more, unless it is the first one that matches. `log` contains a segment from physical offset `base` on, and `end` is
/// the physical offset up to which its records may be read. `number` is the queue offset of the first entry. None: a
/// record is elsewhere, or its head differs from what the entry states.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn collect_matching<'py>(
    py: Python<'py>,
    entries: &[u8],
    codes: &[u8],
    log: PyBuffer<u8>,
    base: i64,
    end: i64,
    number: i64,
    limit: usize,
    max_bytes: usize,
) -> PyResult<Option<(usize, usize, Bound<'py, PyBytes>)>> {
    let codes: Vec<&[u8]> = codes.chunks_exact(CODE_BYTES).collect();
    let Some(log) = log.as_slice(py) else { return Ok(None) };
    let readable = end.checked_sub(base).and_then(|bytes| usize::try_from(bytes).ok());
    let Some(log) = readable.map(|bytes| &log[..bytes.min(log.len())]) else { return Ok(None) };
    let (mut found, mut total, mut examined) = (Vec::with_capacity(limit.min(1 << 10)), 0, 0);
    for (at, entry) in entries.chunks_exact(ENTRY_BYTES).enumerate() {
        let is_wanted = codes.is_empty() || codes.binary_search(&&entry[ENTRY_BYTES - CODE_BYTES..]).is_ok();
        if is_wanted {
            let expected = i64::try_from(at).ok().and_then(|at| number.checked_add(at));
            let Some(record) = record_of(log, base, entry, expected) else { return Ok(None) };
            if !found.is_empty() && (found.len() >= limit || total + record.len() > max_bytes) {
                break;
            }
            total += record.len();
            found.push(record);
        }
        examined = at + 1;
    }
    let records = PyBytes::new_with(py, total, |mut to| {
        for record in &found {
            let (part, rest) = to.split_at_mut(record.len());
            part.iter_mut().zip(*record).for_each(|(byte, from)| *byte = from.get());
            to = rest;
        }
        Ok(())
    })?;
    Ok(Some((examined, found.len(), records)))
}

/// Return the record that an entry names; None if it is not there, or its head differs.
fn record_of<'a>(
    log: &'a [ReadOnlyCell<u8>],
    base: i64,
    entry: &[u8],
    number: Option<i64>,
) -> Option<&'a [ReadOnlyCell<u8>]> {
    let (offset, rest) = entry.split_first_chunk::<8>()?;
    let stated: [u8; 4] = *rest.first_chunk()?;
    let size = usize::try_from(i32::from_be_bytes(stated)).ok()?;
    let at = usize::try_from(i64::from_be_bytes(*offset).checked_sub(base)?).ok()?;
    let record = log.get(at..at.checked_add(size)?)?;
    let is_sound = size >= FIXED_BYTES
        && bytes_at(record, 0) == Some(stated)
        && bytes_at(record, 4) == Some(MESSAGE_MAGIC.to_be_bytes())
        && bytes_at(record, QUEUE_OFFSET_AT) == Some(number?.to_be_bytes());
    is_sound.then_some(record)
}
