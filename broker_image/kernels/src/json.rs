//! Reader of compact JSON, as clients write headers: no spaces, integers without an exponent.

use std::borrow::Cow;

/// Return the value of an integer in the only form that programs write: without a plus sign or leading zeros.
pub fn integer(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text).as_bytes();
    let is_usual = match *digits {
        [] => false,
        [b'0'] => digits.len() == text.len(),
        [first, ..] => first != b'0' && digits.iter().all(u8::is_ascii_digit),
    };
    if is_usual { text.parse().ok() } else { None }
}

/// Unread rest of a text. All functions return None for anything unusual.
pub struct Json<'a> {
    rest: &'a str,
}

impl<'a> Json<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { rest: text }
    }

    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Read an object that is not empty. `member` reads the value of each name, and returns None to end this.
    pub fn object(&mut self, mut member: impl FnMut(&mut Self, &str) -> Option<()>) -> Option<()> {
        self.skip("{")?;
        loop {
            let name = self.string()?;
            self.skip(":")?;
            member(self, &name)?;
            if self.skip(",").is_none() {
                return self.skip("}");
            }
        }
    }

    pub fn integer(&mut self) -> Option<i64> {
        let end = self.rest.bytes().position(|byte| !byte.is_ascii_digit() && byte != b'-')?;
        let (number, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        integer(number)
    }

    pub fn string(&mut self) -> Option<Cow<'a, str>> {
        self.skip("\"")?;
        let text = self.rest;
        let mut read = String::new();
        let mut at = 0;
        loop {
            let length = text.as_bytes().get(at..)?.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20))?;
            let (part, rest) = text.get(at..)?.split_at_checked(length)?;
            match rest.as_bytes() {
                [b'"', ..] => {
                    self.rest = rest.get(1..)?;
                    if at == 0 {
                        return Some(Cow::Borrowed(part));
                    }
                    read.push_str(part);
                    return Some(Cow::Owned(read));
                }
                [b'\\', escape, ..] => {
                    if at == 0 {
                        read.reserve(text.len().min(1024));
                    }
                    read.push_str(part);
                    let (character, bytes) = escaped(*escape, rest)?;
                    read.push(character);
                    at += length + bytes;
                }
                _ => return None,
            }
        }
    }

    fn skip(&mut self, text: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(text)?;
        Some(())
    }
}

/// Return the character of an escape at the start of `text`, and the size of the escape.
fn escaped(letter: u8, text: &str) -> Option<(char, usize)> {
    let character = match letter {
        b'"' | b'\\' | b'/' => char::from(letter),
        b'b' => '\x08',
        b'f' => '\x0C',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return unicode_escape(text),
        _ => return None,
    };
    Some((character, 2))
}

fn unicode_escape(text: &str) -> Option<(char, usize)> {
    let high = unit(text)?;
    if let Some(character) = char::from_u32(high) {
        return Some((character, 6));
    }
    let low = unit(text.get(6..)?)?;
    if !(0xD800..0xDC00).contains(&high) || !(0xDC00..0xE000).contains(&low) {
        return None;
    }
    Some((char::from_u32(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))?, 12))
}

/// Return the UTF-16 code unit of an escape at the start of `text`.
fn unit(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    if digits.starts_with('+') {
        return None; // the parser of the standard library accepts a sign
    }
    u32::from_str_radix(digits, 16).ok()
}
