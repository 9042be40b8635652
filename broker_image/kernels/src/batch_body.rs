//! Body of a batch send in the client (twin: delaymq/client/sending/plain_batch.py).

use std::io::Write;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::hex;

/// Fields of a message, in the order of its class: topic, body, tags, keys, properties, delay level, wait, flag, delay
/// and due time.
const FIELDS: usize = 10;
const BODY: usize = 1;
const PROPERTIES: usize = 4;
const FLAG: usize = 7;
/// Other fields that are empty in a plain message: tags, keys and delay level.
const EMPTY: [usize; 3] = [2, 3, 5];
const NONE: [usize; 2] = [8, 9];
/// Hexadecimal digits of the number in a unique id.
const NUMBER_DIGITS: u32 = 4;

/// Size of a message in addition to body and properties: size, magic, CRC, flag and two lengths.
const FIXED_BYTES: usize = 22;

/// Return the body of a batch and the unique ids of its messages, joined by commas.
///
/// `rows` contains the fields of each message. An id is `id_start` and a number in 4 hexadecimal digits, from
/// `first_number` on, and the properties are `before`, the id and `after`. None: the messages are not plain and alike
/// except for their bodies.
#[pyfunction]
pub fn encode_plain_batch<'py>(
    py: Python<'py>,
    rows: Vec<Bound<'py, PyTuple>>,
    before: &str,
    after: &str,
    id_start: &str,
    first_number: u16,
) -> PyResult<Option<(Bound<'py, PyBytes>, String)>> {
    let Some((flag, bodies)) = bodies_of(&rows) else { return Ok(None) };
    let id_bytes = id_start.len() + NUMBER_DIGITS as usize;
    let properties_bytes = before.len() + id_bytes + after.len();
    let fixed_bytes = FIXED_BYTES + properties_bytes;
    let total: usize = bodies.iter().map(|body| fixed_bytes + body.as_bytes().len()).sum();
    // A total of 32 bits implies that each size in the body has them, too.
    let (Ok(_), Ok(properties_length)) = (u32::try_from(total), i16::try_from(properties_bytes)) else {
        return Ok(None);
    };
    let mut ids = String::with_capacity(bodies.len() * (id_bytes + 1));
    for number in i64::from(first_number)..i64::from(first_number) + bodies.len() as i64 {
        hex::add_id(&mut ids, id_start, number, NUMBER_DIGITS);
    }
    let encoded = PyBytes::new_with(py, total, |mut to| {
        for (body, id) in bodies.iter().zip(ids.as_bytes().chunks(id_bytes + 1)) {
            let body = body.as_bytes();
            to.write_all(&((fixed_bytes + body.len()) as u32).to_be_bytes())?;
            to.write_all(&[0; 8])?;
            to.write_all(&flag.to_be_bytes())?;
            to.write_all(&(body.len() as u32).to_be_bytes())?;
            to.write_all(body)?;
            to.write_all(&properties_length.to_be_bytes())?;
            to.write_all(before.as_bytes())?;
            to.write_all(&id[..id_bytes])?;
            to.write_all(after.as_bytes())?;
        }
        Ok(())
    })?;
    Ok(Some((encoded, ids)))
}

/// Return flag and bodies of plain messages; None if there are none, or one is not plain or differs from the first one.
fn bodies_of<'py>(rows: &[Bound<'py, PyTuple>]) -> Option<(i32, Vec<Bound<'py, PyBytes>>)> {
    let first: Vec<Bound<'py, PyAny>> = rows.first()?.iter().collect();
    let is_plain = first.len() == FIELDS
        && EMPTY.iter().all(|at| is_empty(&first[*at]))
        && NONE.iter().all(|at| first[*at].is_none());
    if !is_plain {
        return None;
    }
    let mut bodies = Vec::with_capacity(rows.len());
    for row in rows {
        let is_like_first = row.len() == FIELDS
            && row.iter_borrowed().zip(&first).enumerate().all(|(at, (field, first))| match at {
                BODY => true,
                PROPERTIES => is_empty(&field),
                _ => field.is(first) || field.eq(first).unwrap_or(false),
            });
        if !is_like_first {
            return None;
        }
        bodies.push(row.get_item(BODY).ok()?.cast_into().ok()?);
    }
    Some((first[FLAG].extract().ok()?, bodies))
}

fn is_empty(field: &Bound<'_, PyAny>) -> bool {
    field.is_truthy().is_ok_and(|is_set| !is_set)
}
