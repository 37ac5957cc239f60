//! Multi-token prediction: layers behind a model's own that guess, from the hidden state of a token and the token after
//! it, the token after that (DeepSeek-V3, arXiv 2412.19437, section 2.2). They have a context of their own, with a KV cache
//! of these layers alone.
//!
//! The crate's own binding (`llama_rs_mtp_*`) serves the sequence 0 alone, wants batches that hold nothing else, takes the
//! most probable token without saying how probable, and reads the target's hidden states through a pointer that is NULL
//! when the target last evaluated without them. So this is what it is made of: llama.cpp's context type, batches
//! of tokens with hidden states, and the three functions that `guard.cpp` declares.

use std::sync::Arc;

use llama_cpp_sys_2 as sys;

use super::context::without_memory;
use super::guard::{Why, foredraft_hidden, foredraft_keep_hidden, foredraft_set_mtp_layer};
use super::{Batch, Context, ContextParams, Interrupt, Model, ThreadPool};
use crate::error::{Error, Result};

/// What a context does with hidden states.
#[derive(Debug, Default, Clone)]
pub(super) struct Hidden {
    role: Role,
    /// Whether evaluations keep them.
    kept: bool,
    /// Whether the last one did.
    there: bool,
}

#[derive(Debug, Default, PartialEq, Clone)]
enum Role {
    /// A model's own layers, which make them.
    #[default]
    Source,
    /// The layers for multi-token prediction: each token comes with one.
    Input,
}

impl Hidden {
    /// Whether each token comes with one.
    pub(super) fn is_input(&self) -> bool {
        self.role == Role::Input
    }

    /// Those of `batch` for llama.cpp, which only reads them.
    pub(super) fn of(&self, batch: &Batch) -> *mut f32 {
        if self.is_input() { batch.hidden.as_ptr().cast_mut() } else { std::ptr::null_mut() }
    }

    /// An evaluation succeeded.
    pub(super) fn evaluated(&mut self) {
        self.there = self.kept;
    }
}

impl Model {
    /// Layers for multi-token prediction that the file says it has.
    pub fn n_mtp_layers(&self) -> usize {
        // SAFETY: the model is alive.
        usize::try_from(unsafe { sys::llama_model_n_layer_nextn(self.as_ptr()) }).unwrap_or(0)
    }
}

impl Context {
    /// A context of the model's layers for multi-token prediction. In its batches every token comes with the hidden state
    /// ([`Batch::push_hidden`]) of the token before it, from the model's own layers or, of drafted tokens, from these; its
    /// logits are those of the next token, and what it keeps of a token with logits is its hidden state.
    ///
    /// # Errors
    /// The model has no such layers, was loaded without them, or llama.cpp cannot evaluate them.
    pub fn mtp(
        model: &Arc<Model>,
        params: &ContextParams,
        threads: &Arc<ThreadPool>,
        interrupt: &Arc<Interrupt>,
    ) -> Result<Context> {
        if model.n_mtp_layers() == 0 {
            return Err(Error::model("the model has no layers for multi-token prediction"));
        }
        // llama.cpp copies rows of the one length to where it reads rows of the other.
        // SAFETY: the model is alive.
        let n_embd = unsafe { sys::llama_model_n_embd(model.as_ptr()) };
        if usize::try_from(n_embd).map_or(true, |n_embd| model.n_embd() < n_embd) {
            let message = format!("embedding_length_out: {} is less than embedding_length: {n_embd}", model.n_embd());
            return Err(Error::model(message));
        }
        let hidden = Hidden { role: Role::Input, ..Hidden::default() };
        Context::make(model, params, threads, interrupt, hidden)?.ok_or_else(without_memory)
    }

    /// Proves that evaluations can keep hidden states, as [`Context::new`] proves that there can be evaluations.
    ///
    /// # Errors
    /// They cannot; they then keep none.
    pub fn prove_hidden(&mut self) -> Result<()> {
        // SAFETY: the context is alive.
        if unsafe { sys::llama_pooling_type(self.ptr.as_ptr()) } != sys::LLAMA_POOLING_TYPE_NONE {
            return Err(Error::model(
                "the model file asks for pooled embeddings, with which there are no hidden states",
            ));
        }
        self.keep_hidden(true);
        let proof = self.alone(Context::prove);
        self.keep_hidden(false);
        proof
    }

    /// Does `work` without the pool's threads, on which a failed assertion would end the process.
    fn alone<T>(&mut self, work: impl FnOnce(&mut Context) -> T) -> T {
        let (one, several) = self.n_threads;
        self.set_threads(1, 1);
        let result = work(self);
        self.set_threads(one, several);
        result
    }

    /// Proves that keys can be moved ([`Context::move_by`]), as [`Context::new`] proves that there can be evaluations: where
    /// every layer sees a window alone, as those of MiMo-V2 for multi-token prediction do, llama.cpp says that they can and fails.
    /// Empties the context.
    pub fn proves_moves(&mut self) -> bool {
        self.reset();
        let moved = self.alone(|context| {
            context.evaluate_one(0)
                && context.evaluate_one(1)
                && context.remove(0, 0, Some(1))
                && context.move_by(0, 1..2, -1)
                && context.evaluate_one(1)
        });
        self.reset();
        moved
    }

    fn evaluate_one(&mut self, position: usize) -> bool {
        let mut batch = Batch::new();
        batch.push(0, position, 0, false);
        self.pad_hidden(&mut batch);
        self.decode(&batch).is_ok()
    }

    /// Whether the evaluations that follow keep the hidden state of each token. Costs a little, and nothing when it changes
    /// nothing.
    pub fn keep_hidden(&mut self, keep: bool) {
        if self.hidden.kept != keep {
            self.hidden.kept = keep;
            // SAFETY: the context is alive; the call sets two flags.
            unsafe { foredraft_keep_hidden(self.ptr.as_ptr(), keep, self.hidden.is_input()) };
        }
    }

    /// The hidden state of the token at `index` of the last batch. `None` when the evaluation did not keep it.
    pub fn hidden(&mut self, index: usize) -> Option<&[f32]> {
        let has_logits = *self.has_logits.get(index)?;
        if !self.hidden.there || (self.hidden.is_input() && !has_logits) {
            return None;
        }
        let row = i32::try_from(index).ok()?;
        let mut why = Why::new();
        // SAFETY: the last evaluation succeeded and kept hidden states, of this token, too; a row has `n_embd` floats
        // (`llama_model_n_embd_out`, by which llama.cpp counts them), belongs to the context and stays until the next evaluation,
        // which needs `&mut self`. Exceptions end in the guard.
        unsafe {
            let row = foredraft_hidden(self.ptr.as_ptr(), row, why.ptr(), why.size());
            (!row.is_null()).then(|| std::slice::from_raw_parts(row, self.n_embd))
        }
    }

    /// Numbers in a hidden state.
    pub fn n_hidden(&self) -> usize {
        self.n_embd
    }

    /// Lets the evaluations that follow go through the layer number `layer` of those for multi-token prediction. False, and
    /// nothing changed, when there is none (llama.cpp would assert).
    pub fn set_mtp_layer(&mut self, layer: usize) -> bool {
        let known = self.hidden.is_input() && layer < self.model.n_mtp_layers();
        if let Some(layer) = i32::try_from(layer).ok().filter(|_| known) {
            // SAFETY: the context is alive, and the layer is one of its model's; the call sets a number.
            unsafe { foredraft_set_mtp_layer(self.ptr.as_ptr(), layer) };
        }
        known
    }

    /// A new context begins: those that take hidden states keep them, too.
    pub(super) fn begin_hidden(&mut self) {
        let keep = self.hidden.is_input();
        self.keep_hidden(keep);
    }

    /// Gives tokens of `batch` that have no hidden state, where they need one, an empty one: as of nothing before a text.
    pub fn pad_hidden(&self, batch: &mut Batch) {
        if self.hidden.is_input() {
            batch.hidden.resize(batch.len() * self.n_embd, 0.0);
        }
    }

    /// What llama.cpp would read beyond the end of.
    pub(super) fn check_hidden(&self, batch: &Batch) -> std::result::Result<(), String> {
        let expected = if self.hidden.is_input() { batch.len() * self.n_embd } else { 0 };
        match batch.hidden.len() {
            len if len == expected => Ok(()),
            len => Err(format!("hidden states of {len} numbers in all, where {expected} are expected")),
        }
    }
}
