//! Entries of an index file (twin: delaymq/store/index/index_file.py).

use std::cell::Cell;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Size of a key in `keys`: hash (4 bytes), physical offset (8) and store time in ms (8), big-endian.
const KEY_BYTES: usize = 20;
const ENTRY_BYTES: usize = 20;
const SLOT_BYTES: usize = 4;

/// Chain one entry for each key and return the entries, and how many slots were empty before.
///
/// `slots` is a writable buffer of `slot_count` slots, `number` is the number of the first entry, and `begin_ms` is the
/// time that dates the file; entries of a file without one have no time. ValueError: `slots` is
/// too small, or there are more entries than numbers, and nothing has changed.
#[pyfunction]
pub fn chain_entries<'py>(
    py: Python<'py>,
    slots: PyBuffer<u8>,
    slot_count: u32,
    number: i32,
    begin_ms: i64,
    keys: &[u8],
) -> PyResult<(Bound<'py, PyBytes>, u32)> {
    let cells = slots.as_mut_slice(py).ok_or_else(|| PyValueError::new_err("the slots are read-only"))?;
    let count = keys.len() / KEY_BYTES;
    let has_numbers = i32::try_from(count).is_ok_and(|count| number.checked_add(count).is_some());
    if slot_count == 0 || cells.len() / SLOT_BYTES < slot_count as usize || number < 1 || !has_numbers {
        return Err(PyValueError::new_err("the slots or the numbers do not suffice for these entries"));
    }
    let mut entries = Vec::with_capacity(count * ENTRY_BYTES);
    let (mut number, mut empty) = (number, 0);
    for key in keys.chunks_exact(KEY_BYTES) {
        let (hash, rest) = key.split_at(4);
        let (offset, stored) = rest.split_at(8);
        let stored_ms = i64::from_be_bytes(stored.try_into().unwrap_or_default());
        let seconds = if begin_ms > 0 { stored_ms.saturating_sub(begin_ms).max(0) / 1000 } else { 0 };
        let seconds = i32::try_from(seconds).unwrap_or(i32::MAX);
        let slot = u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]) % slot_count;
        let cell = &cells[slot as usize * SLOT_BYTES..][..SLOT_BYTES];
        let mut previous = i32::from_be_bytes([cell[0].get(), cell[1].get(), cell[2].get(), cell[3].get()]);
        if previous <= 0 || previous >= number {
            previous = 0;
            empty += 1;
        }
        entries.extend_from_slice(hash);
        entries.extend_from_slice(offset);
        entries.extend_from_slice(&seconds.to_be_bytes());
        entries.extend_from_slice(&previous.to_be_bytes());
        set(cell, number);
        number += 1;
    }
    Ok((PyBytes::new(py, &entries), empty))
}

fn set(cell: &[Cell<u8>], number: i32) {
    for (byte, value) in cell.iter().zip(number.to_be_bytes()) {
        byte.set(value);
    }
}
