//! Responses to sends among received bytes (twin: delaymq_testing/client/send_answers.py).

use std::borrow::Cow;

use pyo3::prelude::*;

use crate::frames::{Frame, frame_at};
use crate::json::{Json, integer};

const RESPONSE: i64 = 1;

/// Opaque, end of the frame, queue id, queue offset, message id, region, whether sends are to be traced.
type Answer<'a> = (i32, usize, i32, i64, Cow<'a, str>, Cow<'a, str>, bool);

/// Return the usual responses to sends at the start of `data`, up to the first other or incomplete frame.
#[pyfunction]
pub fn split_send_answers(data: &[u8]) -> Vec<Answer<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(frame) = frame_at(data, at) {
        at += 4 + frame.len();
        let Some(answer) = read(frame, at) else { break };
        found.push(answer);
    }
    found
}

/// Read a frame that ends at `end`; None if it is anything but the response of code 0 to a send, with the usual header.
fn read(frame: &[u8], end: usize) -> Option<Answer<'_>> {
    let Frame { code, opaque, flag, fields, body } = Frame::read(frame, Fields::read)?;
    if code != 0 || flag? != RESPONSE || !body.is_empty() {
        return None;
    }
    let Fields { queue_id, queue_offset, message_id, region, trace_on } = fields;
    Some((opaque?, end, queue_id?, queue_offset?, message_id?, region?, trace_on?))
}

#[derive(Default)]
struct Fields<'a> {
    queue_id: Option<i32>,
    queue_offset: Option<i64>,
    message_id: Option<Cow<'a, str>>,
    region: Option<Cow<'a, str>>,
    trace_on: Option<bool>,
}

impl<'a> Fields<'a> {
    fn read(json: &mut Json<'a>) -> Option<Self> {
        let mut fields = Self::default();
        json.object(|json, name| {
            let text = json.string()?;
            let is_first = match name {
                "queueId" => fields.queue_id.replace(i32::try_from(natural(&text)?).ok()?).is_none(),
                "queueOffset" => fields.queue_offset.replace(natural(&text)?).is_none(),
                "msgId" => fields.message_id.replace(text).is_none(),
                "MSG_REGION" => fields.region.replace(text).is_none(),
                "TRACE_ON" => fields.trace_on.replace(text != "false").is_none(),
                _ => false,
            };
            is_first.then_some(())
        })?;
        Some(fields)
    }
}

fn natural(text: &str) -> Option<i64> {
    integer(text).filter(|_| !text.starts_with('-'))
}
