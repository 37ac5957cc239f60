//! Decodes of a context, and their results.

use std::ops::Range;
use std::time::Instant;

use llama_cpp_sys_2 as sys;

use crate::context::faked;
use crate::guard::ErrorBuffer;
use crate::platform::thread_cpu_time;
use crate::threads::pacing;
use crate::{Batch, BatchInput, Context, DecodeError, SeqId, TextPooling, log, unrecoverable};
use foredraft_base::error::Error;
use foredraft_native::{foredraft_decode, foredraft_set_reference};

/// The return values of `foredraft_decode` after a failed assertion or another exception, and after one for lack of memory.
const THREW: i32 = -1000;
const NO_MEMORY: i32 = -1001;
/// The result of llama.cpp where it cannot allocate.
const OUT_OF_MEMORY: i32 = -2;
/// The times of larger batches are grouped by powers of two.
const MAX_EXACT_SIZE: usize = 16;

impl DecodeError {
    /// The error of a code that `foredraft_decode` returned, which is not 0.
    pub(crate) fn of_code(code: i32, why: &str) -> DecodeError {
        let why = || format!("llama_decode returned {code}: {why}");
        match code {
            1 => DecodeError::Full,
            2 => DecodeError::Aborted,
            OUT_OF_MEMORY | NO_MEMORY => DecodeError::Failed(Error::exhausted(why())),
            _ => DecodeError::failed(why()),
        }
    }
}

impl Context {
    /// Decodes `batch`. Afterwards [`Context::logits`] has the requested rows.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(&mut self, batch: &Batch) -> std::result::Result<(), DecodeError> {
        // If only part of the keys were rotated, they would be lost. Copies are made before llama.cpp looks at the interrupt.
        self.decode_unless(batch, !self.has_pending_rotations)
    }

    /// As [`Context::decode`], but ignores the interrupt.
    ///
    /// # Errors
    /// See [`DecodeError`]; never [`DecodeError::Aborted`].
    pub fn decode_whole(&mut self, batch: &Batch) -> std::result::Result<(), DecodeError> {
        self.decode_unless(batch, false)
    }

    fn decode_unless(&mut self, batch: &Batch, is_interruptible: bool) -> std::result::Result<(), DecodeError> {
        self.has_logits.clear();
        self.validate(batch).map_err(DecodeError::failed)?;
        (self.has_pending_moves, self.has_pending_rotations) = (false, false);
        self.removable.clear();
        match batch.input {
            BatchInput::Tokens => self.decode_padded(batch, !is_interruptible)?,
            input => self.decode_rows(batch, !is_interruptible, input == BatchInput::NonCausalRows)?,
        }
        // Rows can share a position, and llama.cpp removes by position.
        if batch.input == BatchInput::Tokens {
            self.removable.decoded(batch, self.n_ubatch());
        }
        self.has_logits.extend(batch.outputs.iter().map(|output| *output != 0));
        self.hidden.decoded();
        Ok(())
    }

    /// Decodes a batch, with padding for a token that would be decoded alone: see [`padding`].
    fn decode_padded(&mut self, batch: &Batch, whole: bool) -> std::result::Result<(), DecodeError> {
        let threads = match batch.len() {
            1 => (self.n_threads.0, self.thread_settings.0),
            _ => (self.n_threads.1, self.thread_settings.1),
        };
        if self.by_reference && batch.len() == 1 {
            self.use_reference(true);
            let result = self.decode_raw(batch, whole, threads);
            self.use_reference(false);
            return result;
        }
        let Some(mut padding) = self.padding.take() else { return self.decode_raw(batch, whole, threads) };
        padding.add_to(batch);
        let mut result = self.decode_raw(padding.batch(), whole, threads);
        for pad in padding.pads() {
            self.truncate(pad.sequence, pad.position);
        }
        if result == Err(DecodeError::Full) && !padding.pads().is_empty() {
            result = self.decode_raw(batch, whole, threads);
        }
        self.padding = Some(padding);
        result
    }

    /// Decodes a batch of rows.
    fn decode_rows(&mut self, batch: &Batch, whole: bool, is_non_causal: bool) -> std::result::Result<(), DecodeError> {
        // SAFETY: the context is alive, and no decode is running.
        unsafe { sys::llama_set_causal_attn(self.ptr.as_ptr(), !is_non_causal) };
        let result = self.decode_raw(batch, whole, (self.n_threads.1, self.thread_settings.1));
        // SAFETY: as above.
        unsafe { sys::llama_set_causal_attn(self.ptr.as_ptr(), true) };
        result
    }

    fn use_reference(&mut self, reference: bool) {
        // SAFETY: the context is alive, and no decode is running.
        unsafe { foredraft_set_reference(self.ptr.as_ptr(), reference) };
    }

    /// Decodes a validated batch. `whole`: ignores the interrupt. Uses this number of threads, or fewer while other programs use the cores.
    fn decode_raw(
        &mut self,
        batch: &Batch,
        whole: bool,
        (n_threads, settings): (i32, usize),
    ) -> std::result::Result<(), DecodeError> {
        faked!(fake = &mut self.fake => fake.decode(batch, &self.lora_scales, whole));
        self.seq_lists.clear();
        let mut sequences = batch.sequences.as_slice();
        for n in &batch.n_sequences {
            let (own, rest) = sequences.split_at_checked(usize::try_from(*n).unwrap_or(0)).unwrap_or((&[], &[]));
            self.seq_lists.push(own.as_ptr().cast_mut());
            sequences = rest;
        }
        let raw = sys::llama_batch {
            n_tokens: i32::try_from(batch.len()).unwrap_or(0),
            token: match batch.input {
                BatchInput::Tokens => batch.tokens.as_ptr().cast_mut(),
                _ => std::ptr::null_mut(),
            },
            embd: self.hidden.of(batch),
            pos: batch.positions.as_ptr().cast_mut(),
            n_seq_id: batch.n_sequences.as_ptr().cast_mut(),
            seq_id: self.seq_lists.as_mut_ptr(),
            logits: batch.outputs.as_ptr().cast_mut(),
        };
        // SAFETY: all arrays have `n_tokens` elements (hidden states: `n_embd` each) and live during the call. `validate` has checked what
        // llama.cpp asserts.
        unsafe { self.run(raw, false, whole, (n_threads, settings)) }
    }

    /// Runs the decoder, or the encoder. `whole`: ignores the interrupt.
    ///
    /// # Safety
    /// The arrays of `raw` have `n_tokens` elements, with states of the length that llama.cpp expects, and nothing in them fails an
    /// assertion.
    pub(super) unsafe fn run(
        &mut self,
        raw: sys::llama_batch,
        encoder: bool,
        whole: bool,
        (n_threads, settings): (i32, usize),
    ) -> std::result::Result<(), DecodeError> {
        if self.is_broken || self.threads.is_broken() {
            return Err(DecodeError::failed("an earlier decode failed and left its context unusable"));
        }
        if let Some(loss) = self.model.servers().loss() {
            return Err(DecodeError::failed(loss));
        }
        self.interrupt.hold(whole);
        self.wait_while_paused();
        let len = usize::try_from(raw.n_tokens).unwrap_or(0);
        let size = if len <= MAX_EXACT_SIZE { len } else { len.next_power_of_two() };
        self.threads.wait_for_budget((self.id, size), &self.interrupt);
        let n_threads_now = if self.may_use_fewer { n_threads.min(self.threads.n_threads_now()) } else { n_threads };
        self.threads.place_caller(settings);
        self.use_threads(n_threads_now, settings);
        let (start, ran_before, paused_before) =
            (Instant::now(), thread_cpu_time(), self.interrupt.gate().paused_time());
        let weights = self.scored.as_ref().zip(self.model.output_weights());
        let rows = weights.map(|(scored, (weights, _))| scored.output_rows(weights.as_ptr()));
        let reads_smaller = self.params.drafts && self.model.has_all_panels();
        self.interrupt.restrict_weights(rows.as_ref(), reads_smaller);
        let mut why = ErrorBuffer::new();
        // SAFETY: the context is alive, and the caller vouches for the batch, which the call only reads. The guard catches exceptions.
        let (code, errors) =
            log::collecting(|| unsafe { foredraft_decode(self.ptr.as_ptr(), raw, encoder, why.ptr(), why.size()) });
        self.interrupt.hold(false);
        self.interrupt.restrict_weights(None, false);
        let paused = self.interrupt.gate().paused_time().saturating_sub(paused_before);
        pacing::paused(paused);
        let wall = start.elapsed().saturating_sub(paused);
        self.is_stale |= code == NO_MEMORY || code == THREW;
        // A single thread that throws while it builds the graph (with layers for multi-token prediction it does) leaves the context intact.
        if code == NO_MEMORY || (code == THREW && n_threads_now > 1) {
            self.is_broken = true;
            // ggml frees its work buffer before it allocates a larger one, and keeps the old pointer if that fails.
            self.is_leaked = n_threads_now > 1 || code == NO_MEMORY;
            if n_threads_now > 1 {
                self.threads.set_broken();
                // Its other threads are lost, too, which another process has again.
                unrecoverable::lose(&format!("a decode failed and left its context unusable: {}", why.message()));
            }
        }
        let ran = ran_before.zip(thread_cpu_time()).map(|(before, after)| after.saturating_sub(before));
        if let (0, true, Some(ran)) = (code, self.may_use_fewer, ran) {
            self.threads.record_decode(n_threads, (self.id, size), wall, ran);
        }
        self.threads.charge_budget((self.id, size), wall, ran);
        if let Some(loss) = self.loss() {
            return Err(DecodeError::failed(loss));
        }
        match code {
            0 => Ok(()),
            code => Err(DecodeError::of_code(code, &format!("{} {}", errors.join("; "), why.message()))),
        }
    }

    /// Sleeps while the host pauses the engine, until a decode would be interrupted.
    pub fn wait_while_paused(&self) {
        if self.interrupt.gate().is_closed() {
            self.threads.rest();
            let start = Instant::now();
            self.interrupt.wait_while_paused();
            pacing::paused(start.elapsed());
        }
    }

    /// Why an RPC server of the model was lost, after all that it was asked to compute.
    pub(super) fn loss(&self) -> Option<String> {
        if self.model.servers().is_empty() {
            return None;
        }
        // SAFETY: the context is alive, and no decode is running.
        unsafe { sys::llama_synchronize(self.ptr.as_ptr()) };
        self.model.servers().loss()
    }

    /// Validates what llama.cpp would assert.
    fn validate(&self, batch: &Batch) -> std::result::Result<(), String> {
        if batch.is_empty() || batch.len() > self.n_batch {
            return Err(format!("batch: expected 1 to {} tokens, got {}", self.n_batch, batch.len()));
        }
        self.validate_hidden(batch)?;
        if batch.input == BatchInput::NonCausalRows && batch.len() > self.n_ubatch() {
            return Err(format!("n_ubatch: expected at least {}, the rows that are decoded together", batch.len()));
        }
        let has_places = batch.input != BatchInput::Tokens && self.model.uses_mrope();
        if batch.positions.len() != batch.len() * if has_places { 4 } else { 1 } {
            return Err("expected rows with the positions of the model".into());
        }
        let vocab = self.model.vocab();
        let tokens = if batch.input == BatchInput::Tokens { batch.tokens.as_slice() } else { &[] };
        if let Some(token) = tokens.iter().find(|token| !vocab.contains(**token)) {
            return Err(format!("token {token} is not in the vocabulary"));
        }
        if let Some(sequence) = batch.sequences.iter().find(|sequence| !self.has_sequence(**sequence)) {
            return Err(format!("there is no sequence {sequence}"));
        }
        if batch.n_sequences.iter().any(|n| *n < 1 || (*n > 1 && !self.unified)) {
            return Err("expected one sequence for each token".into());
        }
        Ok(())
    }

    /// The logits of the token at `index` of the last batch, one for each token of the vocabulary. `None`: they were not requested. The
    /// slice is writable, and valid until the next decode.
    pub fn logits(&mut self, index: usize) -> Option<&mut [f32]> {
        if !self.has_logits.get(index).copied().unwrap_or(false) {
            return None;
        }
        faked!(fake = &mut self.fake => fake.logits(index, self.scored.as_ref()));
        let row = i32::try_from(index).ok()?;
        // SAFETY: the last decode succeeded and computed this row, which has one float for each token. It belongs to the context, which
        // is borrowed while the slice lives.
        unsafe {
            let row = sys::llama_get_logits_ith(self.ptr.as_ptr(), row);
            (!row.is_null()).then(|| std::slice::from_raw_parts_mut(row, self.n_vocab))
        }
    }

    /// The embedding of a text after a decode, or its scores, if the context has `embeddings`. The text is the tokens `rows` of the last
    /// batch, which are all of `sequence`.
    pub fn embedding(&mut self, rows: Range<usize>, sequence: SeqId) -> Option<Vec<f32>> {
        let rows = match self.pooling? {
            TextPooling::Rank => return self.scores(sequence),
            TextPooling::Mean => rows,
            TextPooling::First => rows.start..rows.end.min(rows.start + 1),
            TextPooling::Last => rows.end.checked_sub(1)?.max(rows.start)..rows.end,
        };
        let n = rows.len();
        let mut sums = vec![0.0_f64; self.n_embd];
        for row in rows {
            let values = self.token_embedding(row)?;
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        (n > 0).then(|| sums.into_iter().map(|sum| (sum / n as f64) as f32).collect())
    }

    /// The embeddings of the tokens `rows` of the last batch, one after the other.
    pub fn token_embeddings(&mut self, rows: Range<usize>) -> Option<Vec<f32>> {
        let mut values = Vec::with_capacity(rows.len() * self.n_embd);
        for row in rows {
            values.extend_from_slice(self.token_embedding(row)?);
        }
        Some(values)
    }

    /// The embedding of the token at `index` of the last batch.
    fn token_embedding(&mut self, index: usize) -> Option<&[f32]> {
        if !self.has_logits.get(index).copied().unwrap_or(false) {
            return None;
        }
        let row = i32::try_from(index).ok()?;
        // SAFETY: the last decode succeeded and computed this row, which has `n_embd` floats (`llama_model_n_embd_out`) and is valid
        // until the next decode, which needs `&mut self`.
        unsafe {
            let row = sys::llama_get_embeddings_ith(self.ptr.as_ptr(), row);
            (!row.is_null()).then(|| std::slice::from_raw_parts(row, self.n_embd))
        }
    }

    /// The scores that the model's classifier gives `sequence`.
    fn scores(&mut self, sequence: SeqId) -> Option<Vec<f32>> {
        if self.has_logits.is_empty() || !self.has_sequence(sequence) {
            return None;
        }
        let n = self.model.n_scores();
        // SAFETY: the context is alive and pools with the classifier, whose rows have `n` floats. The row is copied at once.
        unsafe {
            let row = sys::llama_get_embeddings_seq(self.ptr.as_ptr(), sequence);
            (!row.is_null()).then(|| std::slice::from_raw_parts(row, n).to_vec())
        }
    }
}
