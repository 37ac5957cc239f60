//! The rows of logits that verification reads.

use super::decode::Rows;
use super::plan::SlotPlan;
use crate::edited_rows::EditedRows;
use crate::request_handle::CompletionSink;
use foredraft_base::error::{Code, Error, Result};
use foredraft_llama::Token;

/// The rows after the nodes of a slot's draft.
pub(super) struct TargetRows<'a, 'b> {
    rows: &'a mut Rows<'b>,
    plan: &'a SlotPlan,
    /// The row after the committed prefix.
    first: usize,
    sink: &'a CompletionSink,
    edited: Option<&'a mut EditedRows>,
}

impl<'a, 'b> TargetRows<'a, 'b> {
    /// The rows of a step, of which the host has changed none yet.
    pub(super) fn new(
        rows: &'a mut Rows<'b>,
        plan: &'a SlotPlan,
        first: usize,
        sink: &'a CompletionSink,
        mut edited: Option<&'a mut EditedRows>,
    ) -> TargetRows<'a, 'b> {
        if let Some(edited) = &mut edited {
            edited.clear();
        }
        TargetRows { rows, plan, first, sink, edited }
    }

    /// The logits of the token after `node`. `tokens`: all tokens before it. Where the request has a logits callback, it is called at the
    /// first call for a node.
    ///
    /// # Errors
    /// The decode gave no such row, or those of the callback.
    pub(super) fn logits(&mut self, node: usize, tokens: &[Token]) -> Result<&mut [f32]> {
        let model = self.rows.logits(self.first + self.plan.tree.row(node)).ok_or_else(no_logits)?;
        match &mut self.edited {
            Some(edited) => edited.changed(node, model, self.sink, tokens),
            None => Ok(model),
        }
    }
}

fn no_logits() -> Error {
    Error::new(Code::Internal, "the decode gave no logits")
}
