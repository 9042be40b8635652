//! Java's `String.hashCode` over UTF-16 code units (twin: delaymq/message/hashing.py).

/// Continue the hash of a preceding text with `text`.
pub fn continued(hash: u32, text: &str) -> u32 {
    let step = |value: u32, unit: u32| value.wrapping_mul(31).wrapping_add(unit);
    if text.is_ascii() {
        text.bytes().fold(hash, |value, byte| step(value, u32::from(byte)))
    } else {
        text.encode_utf16().fold(hash, |value, unit| step(value, u32::from(unit)))
    }
}

/// Return the tags code of a consume queue entry.
pub fn tags_code(tags: &str) -> i64 {
    i64::from(continued(0, tags) as i32)
}

/// Return the hash of the key index for the hash of `TOPIC#KEY`; it is never negative.
pub fn index_hash(hash: u32) -> i32 {
    (hash as i32).checked_abs().unwrap_or(0)
}
