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

/// A found entry: its number, and where the properties of its record begin and end in the window.
type Found = (usize, usize, usize);

/// Return the entries of a queue, from the number `place` on, whose records contain `needle` in topic or properties,
/// and the number of the entry that ends the search.
///
/// `window` are bytes of the log from physical offset `base` on. The search ends before an entry whose record is not
/// completely in the window, is damaged, has an IPv6 host, or has a topic and properties of more than `most_searched`
/// bytes. It also ends behind `most_found` found records, and before a record that would be skipped if `most_skipped`
/// were skipped already.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn find_needle(
    py: Python<'_>,
    window: PyBuffer<u8>,
    base: i64,
    entries: &[u8],
    place: usize,
    needle: &[u8],
    most_skipped: usize,
    most_searched: usize,
    most_found: usize,
) -> (Vec<Found>, usize) {
    let (mut found, mut skipped) = (Vec::new(), 0);
    let Some(window) = window.as_slice(py) else { return (found, place) };
    let finder = memmem::Finder::new(needle);
    let rest = place.checked_mul(ENTRY_BYTES).and_then(|at| entries.get(at..)).unwrap_or_default();
    let mut rest = rest.chunks_exact(ENTRY_BYTES);
    // A mapped file is searched in a copy, because nothing prevents another process from changing it.
    let mut copy = Vec::new();
    'search: loop {
        // Most of the time is spent waiting for memory, so the records of a group are loaded before they are searched.
        let parts: [_; GROUP] =
            std::array::from_fn(|_| rest.next().and_then(|entry| searched(window, base, entry, most_searched)));
        for (_, part) in parts.iter().flatten() {
            black_box((part.first().map(ReadOnlyCell::get), part.get(CACHE_LINE).map(ReadOnlyCell::get)));
        }
        for part in parts {
            let Some((at, cells)) = part else { break 'search };
            if found.len() == most_found {
                break 'search;
            }
            copy.clear();
            copy.extend(cells.iter().map(ReadOnlyCell::get));
            if finder.find(&copy).is_some() {
                let Some(begin) = properties_at(&copy) else { break 'search };
                found.push((place + skipped + found.len(), at + begin, at + copy.len()));
            } else if skipped < most_skipped {
                skipped += 1;
            } else {
                break 'search;
            }
        }
    }
    let following = place + skipped + found.len();
    (found, following)
}

/// Return the position of the properties behind the topic; None if they do not end where the record does.
fn properties_at(tail: &[u8]) -> Option<usize> {
    let (topic_bytes, rest) = tail.split_first()?;
    let (length, properties) = rest.get(usize::from(*topic_bytes)..)?.split_first_chunk::<2>()?;
    let is_whole = usize::try_from(i16::from_be_bytes(*length)) == Ok(properties.len());
    is_whole.then_some(tail.len() - properties.len())
}

/// Return topic and properties of the record that an entry names, after their position; None if they cannot be
/// searched.
fn searched<'a>(
    window: &'a [ReadOnlyCell<u8>],
    base: i64,
    entry: &[u8],
    most: usize,
) -> Option<(usize, &'a [ReadOnlyCell<u8>])> {
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
    (is_plain && (1..=most).contains(&part.len())).then_some((at + HEAD_BYTES + body_bytes, part))
}
