//! One row of logits as the model gave it, changed in a few places and put back afterwards.

use crate::llama::Token;

/// A row of logits that remembers what it was.
#[derive(Debug)]
pub(super) struct Row<'a> {
    logits: &'a mut [f32],
    /// Index and former value, oldest change first.
    undo: Vec<(usize, f32)>,
}

impl<'a> Row<'a> {
    /// `undo` is an empty list whose memory is used; [`Row::restore`] gives it back.
    pub(super) fn new(logits: &'a mut [f32], undo: Vec<(usize, f32)>) -> Self {
        Row { logits, undo }
    }

    /// The logits as they are now.
    pub(super) fn logits(&self) -> &[f32] {
        self.logits
    }

    /// Replaces the logit of `token`; ids outside the row are passed over.
    pub(super) fn edit(&mut self, token: Token, change: impl FnOnce(f32) -> f32) {
        let Ok(index) = usize::try_from(token) else { return };
        if let Some(logit) = self.logits.get_mut(index) {
            self.undo.push((index, *logit));
            *logit = change(*logit);
        }
    }

    /// Puts every changed logit back, bit for bit, and returns the emptied list.
    pub(super) fn restore(mut self) -> Vec<(usize, f32)> {
        for (index, former) in self.undo.drain(..).rev() {
            if let Some(logit) = self.logits.get_mut(index) {
                *logit = former;
            }
        }
        self.undo
    }
}
