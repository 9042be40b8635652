//! Hexadecimal digits in upper case, as in ids of messages.

/// Return the last `count` digits of a number.
pub fn digits(number: i64, count: u32) -> impl Iterator<Item = u8> {
    (0..count).rev().map(move |digit| b"0123456789ABCDEF"[(number >> (4 * digit)) as usize & 0xF])
}

/// Append an id, which consists of `start` and the last `count` digits of a number, to ids separated by commas.
pub fn add_id(ids: &mut String, start: &str, number: i64, count: u32) {
    if !ids.is_empty() {
        ids.push(',');
    }
    ids.push_str(start);
    ids.extend(digits(number, count).map(char::from));
}
