//! Frames among received bytes, with a JSON header without spaces, as RocketMQ's clients and brokers write it.

use crate::json::Json;

/// Headers above this size are left to Python. A larger word would also state another serialisation than JSON.
const MAX_HEADER_BYTES: usize = 0xFFFF;

/// Return the complete frame at a position, without its length.
pub fn frame_at(data: &[u8], at: usize) -> Option<&[u8]> {
    let (length, rest) = data.get(at..)?.split_first_chunk::<4>()?;
    rest.get(..u32::from_be_bytes(*length) as usize)
}

/// A frame with the usual members of a header.
pub struct Frame<'a, F> {
    pub code: i64,
    pub opaque: Option<i32>,
    pub flag: Option<i64>,
    pub fields: F,
    pub body: &'a [u8],
}

impl<'a, F> Frame<'a, F> {
    /// Read a frame without its length; None if its header is long or has unusual or repeated members, or no code or
    /// fields. `read_fields` reads the object of the fields.
    pub fn read(frame: &'a [u8], read_fields: impl Fn(&mut Json<'a>) -> Option<F>) -> Option<Self> {
        let (word, rest) = frame.split_first_chunk::<4>()?;
        let header_bytes = u32::from_be_bytes(*word) as usize;
        if header_bytes > MAX_HEADER_BYTES {
            return None;
        }
        let (header, body) = rest.split_at_checked(header_bytes)?;
        let mut json = Json::new(std::str::from_utf8(header).ok()?);
        let (mut code, mut opaque, mut flag, mut fields) = (None, None, None, None);
        let mut others = [false; 3];
        json.object(|json, name| {
            let is_first = match name {
                "code" => code.replace(json.integer()?).is_none(),
                "opaque" => opaque.replace(i32::try_from(json.integer()?).ok()?).is_none(),
                "flag" => flag.replace(json.integer()?).is_none(),
                "extFields" => fields.replace(read_fields(json)?).is_none(),
                "version" => {
                    i32::try_from(json.integer()?).ok()?;
                    !std::mem::replace(&mut others[0], true)
                }
                "language" | "serializeTypeCurrentRPC" => {
                    json.string()?;
                    !std::mem::replace(&mut others[if name == "language" { 1 } else { 2 }], true)
                }
                _ => false,
            };
            is_first.then_some(())
        })?;
        json.is_at_end().then_some(())?;
        Some(Self { code: code?, opaque, flag, fields: fields?, body })
    }
}
