//! Search for records that a filter may accept (twin: delaymq/broker/pull/needle_search.py).

use std::hint::black_box;

use memchr::memmem;
use pyo3::buffer::{PyBuffer, ReadOnlyCell};
use pyo3::prelude::*;

use crate::batch::{HOST_MASK, MESSAGE_MAGIC};
use crate::heads::{HEAD_BYTES, bytes_at};

const ENTRY_BYTES: usize = 20;
/// Number of records that are loaded together.
const GROUP: usize = 8;
const CACHE_LINE: usize = 64;

/// Return how many entries of a queue, from the number `place` on and at most `most`, name records without `needle`.
///
/// `window` are bytes of the log from physical offset `base` on. The first entry whose record may contain the needle in
/// its topic or properties, is not completely in the window, is damaged, has an IPv6 host, or has a topic and properties
/// of more than `most_searched` bytes, ends the count.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn count_without(
    py: Python<'_>,
    window: PyBuffer<u8>,
    base: i64,
    entries: &[u8],
    place: usize,
    needle: &[u8],
    most: usize,
    most_searched: usize,
) -> usize {
    let Some(window) = window.as_slice(py) else { return 0 };
    let finder = memmem::Finder::new(needle);
    let rest = place.checked_mul(ENTRY_BYTES).and_then(|at| entries.get(at..)).unwrap_or_default();
    let mut wanted = rest.chunks_exact(ENTRY_BYTES).take(most);
    // A mapped file is searched in a copy, because nothing prevents another process from changing it.
    let mut copy = Vec::new();
    let mut count = 0;
    loop {
        // Most of the time is spent waiting for memory, so the records of a group are loaded before they are searched.
        let parts: [_; GROUP] =
            std::array::from_fn(|_| wanted.next().and_then(|entry| searched(window, base, entry, most_searched)));
        for part in parts.iter().flatten() {
            black_box((part.first().map(ReadOnlyCell::get), part.get(CACHE_LINE).map(ReadOnlyCell::get)));
        }
        for part in parts {
            let Some(cells) = part else { return count };
            copy.clear();
            copy.extend(cells.iter().map(ReadOnlyCell::get));
            if finder.find(&copy).is_some() {
                return count;
            }
            count += 1;
        }
    }
}

/// Return topic and properties of the record that an entry names; None if they cannot be searched.
fn searched<'a>(
    window: &'a [ReadOnlyCell<u8>],
    base: i64,
    entry: &[u8],
    most: usize,
) -> Option<&'a [ReadOnlyCell<u8>]> {
    let (offset, rest) = entry.split_first_chunk::<8>()?;
    let size = usize::try_from(i32::from_be_bytes(*rest.first_chunk()?)).ok()?;
    let at = usize::try_from(i64::from_be_bytes(*offset).checked_sub(base)?).ok()?;
    let record = window.get(at..at.checked_add(size)?)?;
    let part = record.get(HEAD_BYTES..)?;
    let number = |at| bytes_at(record, at).map(i32::from_be_bytes);
    let body_bytes = usize::try_from(number(84)?).ok()?;
    let is_plain =
        usize::try_from(number(0)?) == Ok(size) && number(4)? as u32 == MESSAGE_MAGIC && number(36)? & HOST_MASK == 0;
    let part = part.get(body_bytes..)?;
    (is_plain && (1..=most).contains(&part.len())).then_some(part)
}
