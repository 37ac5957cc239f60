//! Evaluations of a context, and what they leave to be read.

use std::time::Instant;

use llama_cpp_sys_2 as sys;

use super::context::faked;
use super::guard::{Why, foredraft_decode, foredraft_set_reference};
use super::threads::time_of_this_thread;
use super::{Batch, Context, SeqId, log};

/// What `foredraft_decode` returns for an exception.
const THREW: i32 = -1000;
/// Batches of up to so many tokens are told apart where their times are compared.
const TOLD_APART: usize = 16;

/// Why an evaluation did not happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecodeError {
    /// The KV cache has no room for the batch; nothing changed.
    Full,
    /// The [`Interrupt`](super::Interrupt) stopped it. Part of the batch may be in the cache: cut it there.
    Aborted,
    /// llama.cpp failed. Part of the batch may be in the cache: cut it there.
    Failed(String),
}

impl Context {
    /// Evaluates `batch`; afterwards [`Context::logits`] has the rows that were asked for.
    ///
    /// # Errors
    /// There is no room for it, it was stopped, or failed. Part of the batch may be in the memory then.
    pub fn decode(&mut self, batch: &Batch) -> std::result::Result<(), DecodeError> {
        // Keys that are turned for new positions in part only, because the evaluation was stopped, would be lost.
        self.decode_unless(batch, !self.moved)
    }

    /// The same, whatever interrupts.
    ///
    /// # Errors
    /// As [`Context::decode`], but that it cannot be stopped.
    pub fn decode_whole(&mut self, batch: &Batch) -> std::result::Result<(), DecodeError> {
        self.decode_unless(batch, false)
    }

    fn decode_unless(&mut self, batch: &Batch, interrupted: bool) -> std::result::Result<(), DecodeError> {
        self.has_logits.clear();
        self.check(batch).map_err(DecodeError::Failed)?;
        self.moved = false;
        self.evaluate_padded(batch, !interrupted)?;
        self.has_logits.extend(batch.outputs.iter().map(|output| *output != 0));
        self.hidden.evaluated();
        Ok(())
    }

    /// As [`Context::evaluate`], with padding for a token that would be alone: see [`padding`].
    fn evaluate_padded(&mut self, batch: &Batch, whole: bool) -> std::result::Result<(), DecodeError> {
        let threads = match batch.len() {
            1 => (self.n_threads.0, self.thread_settings.0),
            _ => (self.n_threads.1, self.thread_settings.1),
        };
        if self.by_reference && batch.len() == 1 {
            self.use_reference(true);
            let result = self.evaluate(batch, whole, threads);
            self.use_reference(false);
            return result;
        }
        let Some(mut padding) = self.padding.take() else { return self.evaluate(batch, whole, threads) };
        padding.add_to(batch);
        let mut result = self.evaluate(padding.batch(), whole, threads);
        for pad in padding.pads() {
            self.truncate(pad.sequence, pad.position);
        }
        if result == Err(DecodeError::Full) && !padding.pads().is_empty() {
            result = self.evaluate(batch, whole, threads);
        }
        self.padding = Some(padding);
        result
    }

    fn use_reference(&mut self, reference: bool) {
        // SAFETY: the context is alive, and evaluates nothing meanwhile.
        unsafe { foredraft_set_reference(self.ptr.as_ptr(), reference) };
    }

    /// Decodes a batch without anything that llama.cpp would assert; `whole`: whatever interrupts. With so many threads, or fewer while
    /// other programs need the cores.
    fn evaluate(
        &mut self,
        batch: &Batch,
        whole: bool,
        (n_threads, settings): (i32, usize),
    ) -> std::result::Result<(), DecodeError> {
        faked!(fake = &mut self.fake => fake.decode(batch, &self.lora_scales, whole));
        if self.threads.is_broken() {
            return Err(DecodeError::Failed(
                "an earlier evaluation failed and left its threads; init makes new ones".into(),
            ));
        }
        self.seq_lists.clear();
        let mut sequences = batch.sequences.as_slice();
        for n in &batch.n_sequences {
            let (own, rest) = sequences.split_at_checked(usize::try_from(*n).unwrap_or(0)).unwrap_or((&[], &[]));
            self.seq_lists.push(own.as_ptr().cast_mut());
            sequences = rest;
        }
        let raw = sys::llama_batch {
            n_tokens: i32::try_from(batch.len()).unwrap_or(0),
            token: batch.tokens.as_ptr().cast_mut(),
            embd: self.hidden.of(batch),
            pos: batch.positions.as_ptr().cast_mut(),
            n_seq_id: batch.n_sequences.as_ptr().cast_mut(),
            seq_id: self.seq_lists.as_mut_ptr(),
            logits: batch.outputs.as_ptr().cast_mut(),
        };
        self.interrupt.hold(whole);
        let size = if batch.len() <= TOLD_APART { batch.len() } else { batch.len().next_power_of_two() };
        self.threads.pace((self.id, size), &self.interrupt);
        let n_threads_now = if self.may_use_fewer { n_threads.min(self.threads.n_threads_now()) } else { n_threads };
        self.threads.place_caller(settings);
        self.use_threads(n_threads_now, settings);
        let (start, ran_before) = (Instant::now(), time_of_this_thread());
        let mut why = Why::new();
        // SAFETY: all arrays have `n_tokens` elements (hidden states: `n_embd` each) and live through the call, which only reads
        // them; tokens, sequences and size are within what llama.cpp asserts (`check`); exceptions end in the guard.
        let (code, errors) =
            log::collecting(|| unsafe { foredraft_decode(self.ptr.as_ptr(), raw, why.ptr(), why.size()) });
        self.interrupt.hold(false);
        if code == THREW && n_threads_now > 1 {
            self.threads.break_up();
        }
        let ran = ran_before.zip(time_of_this_thread()).map(|(before, after)| after.saturating_sub(before));
        if let (0, true, Some(ran)) = (code, self.may_use_fewer, ran) {
            self.threads.saw(n_threads, (self.id, size), start.elapsed(), ran);
        }
        self.threads.paced((self.id, size), start.elapsed(), ran);
        match code {
            0 => Ok(()),
            1 => Err(DecodeError::Full),
            2 => Err(DecodeError::Aborted),
            code => Err(DecodeError::Failed(format!(
                "llama_decode returned {code}: {} {}",
                errors.join("; "),
                why.message()
            ))),
        }
    }

    /// What llama.cpp would assert.
    fn check(&self, batch: &Batch) -> std::result::Result<(), String> {
        if batch.is_empty() || batch.len() > self.n_batch {
            return Err(format!("a batch of {} tokens, where 1 to {} are allowed", batch.len(), self.n_batch));
        }
        self.check_hidden(batch)?;
        let vocab = self.model.vocab();
        if let Some(token) = batch.tokens.iter().find(|token| !vocab.contains(**token)) {
            return Err(format!("the token {token} is not in the vocabulary"));
        }
        if let Some(sequence) = batch.sequences.iter().find(|sequence| !self.has_sequence(**sequence)) {
            return Err(format!("there is no sequence {sequence}"));
        }
        if batch.n_sequences.iter().any(|n| *n < 1 || (*n > 1 && !self.unified)) {
            return Err("a token of several sequences, or of none".into());
        }
        Ok(())
    }

    /// The logits of the token at `index` of the last batch: one for each token of the vocabulary. `None` when
    /// they were not asked for. They may be written to, and stay until the next evaluation.
    pub fn logits(&mut self, index: usize) -> Option<&mut [f32]> {
        if !self.has_logits.get(index).copied().unwrap_or(false) {
            return None;
        }
        faked!(fake = &mut self.fake => fake.logits(index));
        let row = i32::try_from(index).ok()?;
        // SAFETY: the last evaluation succeeded and computed this row, which has one float a token and belongs
        // to the context, borrowed here as long as the slice lives.
        unsafe {
            let row = sys::llama_get_logits_ith(self.ptr.as_ptr(), row);
            (!row.is_null()).then(|| std::slice::from_raw_parts_mut(row, self.n_vocab))
        }
    }

    /// The pooled embedding of `sequence` after an evaluation of a context made with `embeddings`.
    pub fn embedding(&mut self, sequence: SeqId) -> Option<&[f32]> {
        if !self.pooled || !self.has_sequence(sequence) {
            return None;
        }
        // SAFETY: the context is alive; the row has `n_embd` floats and stays until the next evaluation, which
        // needs `&mut self`.
        unsafe {
            let row = sys::llama_get_embeddings_seq(self.ptr.as_ptr(), sequence);
            (!row.is_null()).then(|| std::slice::from_raw_parts(row, self.n_embd))
        }
    }
}
