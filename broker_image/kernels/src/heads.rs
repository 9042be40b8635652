//! Fields of a record's head.

use pyo3::buffer::ReadOnlyCell;

/// Size of a record's head with IPv4 hosts.
pub const HEAD_BYTES: usize = 88;

/// Return the number at a position, which must be a constant.
pub fn i32_at(head: &[u8; HEAD_BYTES], at: usize) -> i32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&head[at..at + 4]);
    i32::from_be_bytes(bytes)
}

/// Like `i32_at`.
pub fn i64_at(head: &[u8; HEAD_BYTES], at: usize) -> i64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&head[at..at + 8]);
    i64::from_be_bytes(bytes)
}

/// Return bytes of a mapped record; None if it is shorter.
pub fn bytes_at<const N: usize>(record: &[ReadOnlyCell<u8>], at: usize) -> Option<[u8; N]> {
    let cells: &[ReadOnlyCell<u8>; N] = record.get(at..)?.first_chunk()?;
    Some(std::array::from_fn(|number| cells[number].get()))
}
