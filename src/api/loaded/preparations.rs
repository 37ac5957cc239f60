//! The preparations that have not ended, by where they leave their state. The next request there ends them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::registry::RequestRecord;
use crate::engine::{Phase, PreparedPlace, RequestHandle};

#[derive(Default)]
pub struct Preparations(Mutex<HashMap<PreparedPlace, Arc<RequestHandle>>>);

impl Preparations {
    /// A request, or another preparation, has come for this place. Returns the preparation that it replaces.
    pub fn supersede(&self, place: PreparedPlace, record: &RequestRecord) -> Option<Arc<RequestHandle>> {
        let mut preparations = self.0.lock();
        if !record.request.options.is_preparation() {
            return preparations.remove(&place);
        }
        preparations.retain(|_, preparation| preparation.phase() != Phase::Finished);
        preparations.insert(place, Arc::clone(&record.handle))
    }
}
