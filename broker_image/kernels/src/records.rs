//! Entries and keys of a record, as queues and index store them.

use crate::hashing;
use crate::properties::{Pair, value_of};

const MAX_KEYS: usize = 128;
/// Property with the unique id of a message.
pub const UNIQUE_KEY: &str = "UNIQ_KEY";

/// Return the hash of the topic and the separator, with which the hash of each of its keys begins.
pub fn key_base(topic: &str) -> u32 {
    hashing::continued(hashing::continued(0, topic), "#")
}

/// Append the entry of a consume queue.
pub fn add_entry(to: &mut Vec<u8>, offset: i64, size: i32, pairs: &[Pair<'_>]) {
    add_coded_entry(to, offset, size, code_of(pairs));
}

/// Return the tags code of a message.
pub fn code_of(pairs: &[Pair<'_>]) -> i64 {
    value_of(pairs, "TAGS").map_or(0, hashing::tags_code)
}

/// Append the entry of a consume queue with a tags code, or the due time in its place.
pub fn add_coded_entry(to: &mut Vec<u8>, offset: i64, size: i32, code: i64) {
    to.extend_from_slice(&offset.to_be_bytes());
    to.extend_from_slice(&size.to_be_bytes());
    to.extend_from_slice(&code.to_be_bytes());
}

/// Append each key of a record: hash, physical offset, store time in ms.
pub fn add_keys(to: &mut Vec<u8>, key_base: u32, pairs: &[Pair<'_>], offset: i64, store_ms: i64) {
    let keys = value_of(pairs, "KEYS").into_iter().flat_map(|keys| keys.split(' ').take(MAX_KEYS));
    for key in value_of(pairs, UNIQUE_KEY).into_iter().chain(keys).filter(|key| !key.is_empty()) {
        let hash = hashing::index_hash(hashing::continued(key_base, key));
        to.extend_from_slice(&hash.to_be_bytes());
        to.extend_from_slice(&offset.to_be_bytes());
        to.extend_from_slice(&store_ms.to_be_bytes());
    }
}
