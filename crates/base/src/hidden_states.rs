//! The hidden states that a target keeps for drafters.

/// A context whose last decode kept the hidden states of its tokens, if a drafter needs them.
pub trait HiddenStates {
    /// The hidden state after the last layer of the token at `index` of the last batch. `None`: the decode did not keep it.
    fn hidden(&mut self, index: usize) -> Option<&[f32]>;

    /// Appends the states of the layers that the context's draft head reads, of the same token. Returns false, and appends nothing, if the
    /// decode did not keep them.
    fn layer_states(&mut self, index: usize, to: &mut Vec<f32>) -> bool;
}
