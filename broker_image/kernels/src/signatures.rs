//! Signatures of requests (reference: delaymq/protocol/signatures.py).

use ctutils::CtEq;
use hmac::{Hmac, KeyInit, Mac};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PySet;
use sha1::Sha1;

use crate::base64;

/// The account whose requests need no rules if it signed them, from a tuple.
#[derive(FromPyObject)]
pub struct Signer<'py> {
    #[pyo3(item(0))]
    pub access_key: String,
    #[pyo3(item(1))]
    secret_key: PyBackedBytes,
    /// Topics to which the account may send.
    #[pyo3(item(2))]
    topics: Bound<'py, PySet>,
}

impl Signer<'_> {
    /// Return the check of this account's signatures.
    pub fn verifier(&self) -> Option<Verifier<'_>> {
        Some(Verifier { access_key: &self.access_key, keyed: Hmac::new_from_slice(&self.secret_key).ok()? })
    }

    pub fn may_send_to(&self, topic: &str) -> bool {
        self.topics.contains(topic).unwrap_or(false)
    }
}

/// Check of signatures with one secret key.
pub struct Verifier<'a> {
    access_key: &'a str,
    keyed: Hmac<Sha1>,
}

impl Verifier<'_> {
    /// Return whether a request states the account and its signature. `values` are those of all other fields, in the order
    /// of their names. The comparison of the signature takes constant time.
    pub fn accepts<'v>(
        &self,
        access_key: &str,
        signature: &str,
        values: impl Iterator<Item = &'v str>,
        body: &[u8],
    ) -> bool {
        if access_key != self.access_key {
            return false;
        }
        let mut keyed = self.keyed.clone();
        keyed.update(access_key.as_bytes()); // capital letters precede small ones
        values.for_each(|value| keyed.update(value.as_bytes()));
        keyed.update(body);
        let expected = base64::encode(&keyed.finalize().into_bytes(), base64::STANDARD);
        expected.as_bytes().ct_eq(signature.as_bytes()).to_bool()
    }
}
