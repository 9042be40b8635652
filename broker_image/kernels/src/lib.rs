//! Compiled kernels for DelayMQ (docs/kernels.md).
//!
//! A kernel is a function without state of its own that returns what its Python twin returns. It returns None for any
//! input that needs rules of the broker. None of them reads or writes a file.

mod answers;
mod base64;
mod batch;
mod batch_body;
mod collect;
mod copies;
mod delays;
mod filter;
mod frames;
mod hashing;
mod heads;
mod hex;
mod index;
mod json;
mod properties;
mod pull;
mod records;
mod requests;
mod scan;
mod sends;
mod signatures;
mod timed;
mod transactions;

use pyo3::prelude::*;

/// Version of the functions' signatures and results; `delaymq.kernels` uses the package only if it has the same one.
const INTERFACE: u32 = 16;

#[pymodule]
fn delaymq_kernels(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("INTERFACE", INTERFACE)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<batch::BatchEncoder>()?;
    module.add_class::<copies::CopyEncoder>()?;
    module.add_class::<scan::LogScanner>()?;
    module.add_class::<sends::SendEncoder>()?;
    module.add_function(wrap_pyfunction!(answers::split_send_answers, module)?)?;
    module.add_function(wrap_pyfunction!(batch_body::encode_plain_batch, module)?)?;
    module.add_function(wrap_pyfunction!(collect::collect_matching, module)?)?;
    module.add_function(wrap_pyfunction!(filter::find_needle, module)?)?;
    module.add_function(wrap_pyfunction!(pull::split_plain, module)?)?;
    module.add_function(wrap_pyfunction!(index::chain_entries, module)?)
}
