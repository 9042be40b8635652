//! Sends with a due time (reference: `DelayIngress.prepare_timed` in delaymq/broker/delivery/delay_rewrite.py).

use pyo3::prelude::*;

use crate::base64;
use crate::json::integer;
use crate::properties::{self, Pair, value_of};
use crate::records::UNIQUE_KEY;
use crate::requests::Send;
use crate::sends::{Message, Writer};

const TIMER_QUEUE: i32 = 0;
/// In place of the queue of the schedule topic.
const TIMELINE_QUEUE: i32 = -1;
/// Latest due time in 18 digits.
const LATEST_DUE_MS: i64 = 999_999_999_999_999_999;

/// Names, and limits of messages with a due time, from a tuple.
#[derive(FromPyObject)]
pub struct Rules {
    /// Properties that request a due time, each with the unit of a delay in ms; 0: a time since the epoch in ms.
    #[pyo3(item(0))]
    requests: Vec<(String, i64)>,
    #[pyo3(item(1))]
    due: String,
    #[pyo3(item(2))]
    topic: String,
    #[pyo3(item(3))]
    max_properties_bytes: usize,
}

impl Rules {
    /// Return the only property that requests a due time: unit and value. `Err`: there are several.
    pub fn requested<'a>(&self, pairs: &[Pair<'a>]) -> Result<Option<(i64, &'a str)>, ()> {
        let mut found = pairs.iter().filter_map(|pair| {
            let (_, unit_ms) = self.requests.iter().find(|(name, _)| name == pair.0)?;
            Some((*unit_ms, pair.1))
        });
        let first = found.next();
        if found.next().is_some() { Err(()) } else { Ok(first) }
    }
}

impl Writer<'_, '_> {
    /// Append the message of a send to a topic, for which a due time is requested. None if Python has to handle it;
    /// nothing is appended then.
    pub fn add_timed<'s>(
        &mut self,
        send: &'s Send<'_>,
        topic: usize,
        mut pairs: Vec<Pair<'s>>,
        (unit_ms, value): (i64, &str),
    ) -> Option<()> {
        let encoder = self.encoder;
        let (names, rules) = (&encoder.delays, &encoder.delays.timed);
        let due_ms = self.timed_due(unit_ms, integer(value)?)?;
        if self.needs_delay_rules(topic, &pairs, send, self.delays.max_timed_body_bytes)? {
            return None;
        }
        let handle = value_of(&pairs, UNIQUE_KEY).map(|key| {
            let broker = &*self.answer.broker_name;
            base64::encode(format!("v1 {} {broker} {due_ms} {key}", send.topic).as_bytes(), base64::FOR_URLS)
        });
        let timer_topic = self.closed_topic(&rules.topic);
        let queue = self.queue(timer_topic, TIMER_QUEUE)?;
        let wait = value_of(&pairs, &encoder.names.wait);
        pairs.retain(|pair| pair.0 != encoder.names.wait);
        let (real_queue_id, out_ms) = (send.queue_id.to_string(), due_ms.to_string());
        let statement = statement(self.next_offset()?, due_ms);
        let mut pairs: Vec<Pair<'_>> = pairs; // those that are added live shorter
        let added = [
            (encoder.names.cluster.as_str(), Some(self.cluster)),
            (&encoder.names.wait, wait),
            (&rules.due, Some(out_ms.as_str())),
            (&names.real_topic, Some(&*send.topic)),
            (&names.real_queue_id, Some(real_queue_id.as_str())),
            (&encoder.names.account, self.account()),
            (&names.due, Some(statement.as_str())),
        ];
        properties::put_all(&mut pairs, added)?;
        let message = Message {
            pairs: &pairs,
            max_properties_bytes: rules.max_properties_bytes,
            due_ms: Some(due_ms),
            handle: handle.as_deref(),
        };
        let place = self.add_message(send, timer_topic, queue, &message)?;
        self.count(timer_topic, &place)?;
        let topic = self.known_topics.get_mut(topic)?;
        topic.elsewhere += 1;
        self.delayed.push((topic.name.clone(), TIMELINE_QUEUE, place.offset, place.stated_size, due_ms));
        Some(())
    }

    /// Return the due time that a property requests; None if the message is due already, or needs rules.
    fn timed_due(&self, unit_ms: i64, value: i64) -> Option<i64> {
        if value < 0 {
            return None;
        }
        let due_ms = if unit_ms == 0 { value } else { self.now_ms.checked_add(value.checked_mul(unit_ms)?)? };
        let delay_ms = due_ms.checked_sub(self.now_ms)?;
        (due_ms <= LATEST_DUE_MS && 0 < delay_ms && delay_ms <= self.delays.max_timed_ms).then_some(due_ms)
    }
}

/// Return the statement of the first record of a message (twin: `first_due` in delaymq/message/timed_marks.py).
fn statement(place: i64, due_ms: i64) -> String {
    let text = format!("2:{place:020}:{due_ms}");
    format!("{text}:{:08x}", crc32fast::hash(text.as_bytes()))
}
