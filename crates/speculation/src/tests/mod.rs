//! Tests of the whole crate, and what tests share.
//!
//! - `simulator`: the controller against recorded texts on machines given by their costs.
//! - `fakes`: vocabularies and samplers that need no model.

pub(crate) mod fakes;
mod simulator;
