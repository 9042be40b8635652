//! Sends with a delay level (reference: delaymq/broker/delivery/delay_rewrite.py).

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::json::integer;
use crate::properties::{self, Pair, value_of};
use crate::requests::Send;
use crate::sends::{Message, Writer};
use crate::timed;

/// Latest due time in 16 digits.
const MAX_DUE_MS: i64 = 9_999_999_999_999_999;

/// Names, and limits of delayed messages, from a tuple.
#[derive(FromPyObject)]
pub struct Rules {
    #[pyo3(item(0))]
    level: String,
    #[pyo3(item(1))]
    pub real_topic: String,
    #[pyo3(item(2))]
    pub real_queue_id: String,
    #[pyo3(item(3))]
    pub due: String,
    #[pyo3(item(4))]
    schedule_topic: String,
    /// Properties with which a delayed message needs rules.
    #[pyo3(item(5))]
    managed: Vec<String>,
    /// For messages with a delay level.
    #[pyo3(item(6))]
    max_properties_bytes: usize,
    #[pyo3(item(7))]
    pub timed: timed::Rules,
}

/// What decides about delays at the time of a call, from a tuple.
#[derive(FromPyObject)]
pub struct Delays<'py> {
    /// Delay of each level in ms, from level 1 on.
    #[pyo3(item(0))]
    of_levels_ms: Bound<'py, PyTuple>,
    /// Topics whose messages need rules if they are delayed.
    #[pyo3(item(1))]
    ruled: Bound<'py, PyDict>,
    /// Messages with a delay level and a larger body need rules.
    #[pyo3(item(2))]
    max_body_bytes: i64,
    /// Likewise, with a due time.
    #[pyo3(item(3))]
    pub max_timed_body_bytes: i64,
    /// Longest delay until a due time in ms; -1 if all messages with a due time need rules.
    #[pyo3(item(4))]
    pub max_timed_ms: i64,
}

impl Rules {
    /// Return the delay level that a message requests.
    pub fn level<'a>(&self, pairs: &[Pair<'a>]) -> Option<&'a str> {
        value_of(pairs, &self.level)
    }
}

impl Writer<'_, '_> {
    /// Append the message of a send to a topic with a delay level. None if Python has to handle it; nothing is appended
    /// then.
    pub fn add_delayed<'s>(
        &mut self,
        send: &'s Send<'_>,
        topic: usize,
        mut pairs: Vec<Pair<'s>>,
        level: &str,
    ) -> Option<()> {
        let encoder = self.encoder;
        let rules = &encoder.delays;
        let (queue_id, due_ms) = self.due(level)?;
        if self.needs_delay_rules(topic, &pairs, send, self.delays.max_body_bytes)? {
            return None;
        }
        let schedule_topic = self.closed_topic(&rules.schedule_topic);
        let queue = self.queue(schedule_topic, queue_id)?;
        let number = self.next_number(queue)?;
        let wait = value_of(&pairs, &encoder.names.wait);
        pairs.retain(|pair| pair.0 != encoder.names.wait);
        let (real_queue_id, due) = (send.queue_id.to_string(), format!("{due_ms:016}:{queue_id:04}:{number:020}"));
        let mut pairs: Vec<Pair<'_>> = pairs; // those that are added live shorter
        let added = [
            (encoder.names.cluster.as_str(), Some(self.cluster)),
            (&encoder.names.wait, wait),
            (&rules.real_topic, Some(&*send.topic)),
            (&rules.real_queue_id, Some(real_queue_id.as_str())),
            (&rules.due, Some(due.as_str())),
            (&encoder.names.account, self.account()),
        ];
        properties::put_all(&mut pairs, added)?;
        let message = Message {
            pairs: &pairs,
            max_properties_bytes: rules.max_properties_bytes,
            due_ms: Some(due_ms),
            handle: None,
        };
        let place = self.add_message(send, schedule_topic, queue, &message)?;
        let topic = self.known_topics.get(topic)?.name.clone();
        self.delayed.push((topic, queue_id, place.offset, place.stated_size, due_ms));
        Some(())
    }

    /// Return whether a delayed message needs rules; `max_body_bytes` is the size of a body that certainly fits.
    pub fn needs_delay_rules(
        &self,
        topic: usize,
        pairs: &[Pair<'_>],
        send: &Send<'_>,
        max_body_bytes: i64,
    ) -> Option<bool> {
        let managed = &self.encoder.delays.managed;
        let is_plain = i64::try_from(send.body.len()).ok()? <= max_body_bytes
            && self.is_queue_of(topic, send.queue_id)
            && !pairs.iter().any(|pair| managed.iter().any(|managed| managed == pair.0))
            && !self.delays.ruled.contains(&self.known_topics.get(topic)?.name).ok()?;
        Some(!is_plain)
    }

    /// Return the queue of the schedule topic for a delay level and the due time; None if the message needs rules.
    fn due(&self, level: &str) -> Option<(i32, i64)> {
        let queue_id = i32::try_from(integer(level)?).ok()?.checked_sub(1)?;
        let delays_ms = &self.delays.of_levels_ms;
        let delay_ms: i64 = delays_ms.get_item(usize::try_from(queue_id).ok()?).ok()?.extract().ok()?;
        let due_ms = self.now_ms.checked_add(delay_ms)?;
        (0..=MAX_DUE_MS).contains(&due_ms).then_some((queue_id, due_ms))
    }
}
