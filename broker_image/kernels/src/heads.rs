//! Fields of a record's head.

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
