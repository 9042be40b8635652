//! Properties of a message: `name \x01 value` joined by `\x02` (twin: delaymq/message/properties.py).

pub type Pair<'a> = (&'a str, &'a str);

/// A message with more pairs, or a batch with a message that has more, is left to Python: names are compared one by one.
const MAX_PAIRS: usize = 64;

/// Append the pairs in `text` to `pairs`, which holds none. Of pairs with the same name, the last wins, in the place of
/// the first; pairs without a name or a value are dropped. Return false if there are too many, dropped ones included.
pub fn parse<'a>(text: &'a str, pairs: &mut Vec<Pair<'a>>) -> bool {
    for (number, pair) in text.split('\x02').enumerate() {
        if number == MAX_PAIRS {
            return false;
        }
        let Some((name, value)) = pair.split_once('\x01') else { continue };
        if !name.is_empty() && !value.is_empty() && !put(pairs, (name, value)) {
            return false;
        }
    }
    true
}

/// Set the value of a name, as in a Python dict. Return false if there are too many pairs.
pub fn put<'a>(pairs: &mut Vec<Pair<'a>>, (name, value): Pair<'a>) -> bool {
    if let Some(known) = pairs.iter_mut().find(|known| known.0 == name) {
        known.1 = value;
    } else if pairs.len() == MAX_PAIRS {
        return false;
    } else {
        pairs.push((name, value));
    }
    true
}

/// Set the values of names, as `put`, except those without a value. None if there are too many pairs.
pub fn put_all<'a, const N: usize>(pairs: &mut Vec<Pair<'a>>, added: [(&'a str, Option<&'a str>); N]) -> Option<()> {
    added.into_iter().all(|(name, value)| value.is_none_or(|value| put(pairs, (name, value)))).then_some(())
}

/// Return the value of a name.
pub fn value_of<'a>(pairs: &[Pair<'a>], name: &str) -> Option<&'a str> {
    pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1)
}

/// Return the size in bytes of the encoded pairs.
pub fn encoded_bytes(pairs: &[Pair<'_>]) -> usize {
    let text: usize = pairs.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    text.saturating_sub(1)
}

/// Append the encoded pairs to `to`.
pub fn encode(pairs: &[Pair<'_>], to: &mut Vec<u8>) {
    for (number, (name, value)) in pairs.iter().enumerate() {
        if number > 0 {
            to.push(2);
        }
        to.extend_from_slice(name.as_bytes());
        to.push(1);
        to.extend_from_slice(value.as_bytes());
    }
}
