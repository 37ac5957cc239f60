//! The rows of logits that the host's logits callback has changed.

use super::request::LogitsEditor;
use super::request_handle::CompletionSink;
use foredraft_base::error::{Code, Error, Result};
use foredraft_llama::Token;
use foredraft_sampling as sampling;

/// Copies of a slot's rows that the host's logits callback has changed. The next step uses the memory again.
pub(super) struct EditedRows {
    editor: LogitsEditor,
    /// Each with its node of the draft. Only the first `n_rows` are of this step.
    rows: Vec<(usize, Vec<f32>)>,
    n_rows: usize,
}

impl EditedRows {
    pub(super) fn new(editor: LogitsEditor) -> EditedRows {
        EditedRows { editor, rows: Vec::new(), n_rows: 0 }
    }

    /// Forgets the rows of the step before.
    pub(super) fn clear(&mut self) {
        self.n_rows = 0;
    }

    /// The changed copy of the row after `node`, made at the first call: `model` is the row that the model computed, of the token after
    /// `tokens`. The callback never sees a row without candidates, which is decoded again.
    ///
    /// # Errors
    /// Those of the callback; or the request was cancelled meanwhile, and no token of this row may be chosen.
    pub(super) fn changed(
        &mut self,
        node: usize,
        model: &[f32],
        sink: &CompletionSink,
        tokens: &[Token],
    ) -> Result<&mut [f32]> {
        let known = self.rows.iter().take(self.n_rows).position(|(known, _)| *known == node);
        let index = known.unwrap_or(self.n_rows);
        if known.is_none() {
            if index == self.rows.len() {
                self.rows.push((node, Vec::new()));
            }
            if let Some((of, row)) = self.rows.get_mut(index) {
                *of = node;
                row.clear();
                row.extend_from_slice(model);
                if sampling::has_candidate(model) {
                    self.editor.edit(sink.id(), row, tokens)?;
                    if sink.is_cancelled() {
                        return Err(Error::new(Code::Cancelled, "the logits callback has cancelled the request"));
                    }
                }
            }
            self.n_rows += 1;
        }
        self.rows
            .get_mut(index)
            .map(|(_, row)| row.as_mut_slice())
            .ok_or_else(|| Error::new(Code::Internal, "a changed row is missing"))
    }
}
