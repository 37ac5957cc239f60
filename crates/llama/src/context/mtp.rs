//! Multi-token prediction (MTP): additional layers that predict, from the hidden state of a token and the next token, the token after
//! that (DeepSeek-V3, arXiv 2412.19437, section 2.2). They have their own context, whose KV cache is for these layers only.
//!
//! The crate's binding (`llama_rs_mtp_*`) is not used. It supports only sequence 0, and only batches without other sequences. It takes
//! the most probable token without its probability. And it reads the target's hidden states through a pointer that is NULL if the
//! target's last decode did not keep them. This module uses what the binding is built on: llama.cpp's context type, batches of tokens
//! with hidden states, and the three functions that `guard.cpp` declares.

use std::sync::Arc;

use llama_cpp_sys_2 as sys;

use crate::context::hidden::Hidden;
use crate::context::without_memory;
use crate::{Batch, BatchInput, Context, ContextParams, DraftKind, Interrupt, Model, ThreadPool};
use foredraft_base::error::{Error, Result};
use foredraft_native::{foredraft_keep_hidden, foredraft_set_mtp_layer};

impl Model {
    /// The number of MTP layers in the model file.
    pub fn n_mtp_layers(&self) -> usize {
        // SAFETY: the model is alive.
        usize::try_from(unsafe { sys::llama_model_n_layer_nextn(self.as_ptr()) }).unwrap_or(0)
    }
}

impl Context {
    /// Creates a context of the model's MTP layers. Each token in its batches needs the hidden state ([`Batch::push_hidden`]) of the
    /// previous token: from the model's main layers or, for drafted tokens, from these layers. The logits are those of the next
    /// token. Tokens with logits also have a hidden state.
    ///
    /// # Errors
    /// The model has no MTP layers, was loaded without them, or llama.cpp cannot decode them.
    pub fn mtp(
        model: &Arc<Model>,
        params: &ContextParams,
        threads: &Arc<ThreadPool>,
        interrupt: &Arc<Interrupt>,
    ) -> Result<Context> {
        if model.n_mtp_layers() == 0 {
            return Err(Error::model("the model has no layers for multi-token prediction"));
        }
        // llama.cpp copies rows of one length to a buffer from which it reads rows of the other length.
        // SAFETY: the model is alive.
        let n_embd = unsafe { sys::llama_model_n_embd(model.as_ptr()) };
        if usize::try_from(n_embd).map_or(true, |n_embd| model.n_embd() < n_embd) {
            let message = format!("embedding_length_out: {} is less than embedding_length: {n_embd}", model.n_embd());
            return Err(Error::model(message));
        }
        let hidden = Hidden::of_head(DraftKind::Mtp);
        Context::make(model, params, threads, interrupt, hidden, None)?.ok_or_else(without_memory)
    }

    /// Tests that decodes can keep hidden states, as [`Context::new`] tests that decodes work.
    ///
    /// # Errors
    /// They cannot. Decodes then keep none.
    pub fn test_hidden(&mut self) -> Result<()> {
        // SAFETY: the context is alive.
        if unsafe { sys::llama_pooling_type(self.ptr.as_ptr()) } != sys::LLAMA_POOLING_TYPE_NONE {
            return Err(Error::model("the model file sets a pooling type, with which there are no hidden states"));
        }
        self.keep_hidden(true);
        let result = self.on_this_thread(Context::test_decode);
        self.keep_hidden(false);
        result
    }

    /// Runs `work` without the pool's threads, on which a failed assertion would end the process.
    pub(super) fn on_this_thread<T>(&mut self, work: impl FnOnce(&mut Context) -> T) -> T {
        let (one, several) = self.n_threads;
        self.set_threads(1, 1);
        let result = work(self);
        self.set_threads(one, several);
        result
    }

    /// Tests whether keys can be moved ([`Context::move_by`]). If every layer has a sliding window, as the MTP layers of MiMo-V2 do,
    /// llama.cpp claims that they can, and fails. Clears the context.
    pub fn test_moves(&mut self) -> bool {
        self.reset();
        let moved = self.on_this_thread(|context| {
            context.decode_one(0)
                && context.decode_one(1)
                && context.remove(0, 0, Some(1))
                && context.move_by(0, 1..2, -1)
                && context.decode_one(1)
        });
        self.reset();
        moved
    }

    fn decode_one(&mut self, position: usize) -> bool {
        let mut batch = Batch::new();
        batch.push(0, position, 0, false);
        self.pad_hidden(&mut batch);
        self.decode(&batch).is_ok()
    }

    /// Sets whether later decodes keep the hidden state of each token. Keeping them has a small cost.
    pub fn keep_hidden(&mut self, keep: bool) {
        if self.hidden.kept != keep {
            self.hidden.kept = keep;
            // SAFETY: the context is alive. The call sets two flags.
            unsafe { foredraft_keep_hidden(self.ptr.as_ptr(), keep, self.hidden.is_input()) };
        }
    }

    /// The length of a hidden state.
    pub fn n_hidden(&self) -> usize {
        self.n_embd
    }

    /// Selects the MTP layer for later decodes. Returns false, and changes nothing, if it does not exist (llama.cpp would assert).
    pub fn set_mtp_layer(&mut self, layer: usize) -> bool {
        let known = self.hidden.head() == DraftKind::Mtp && layer < self.model.n_mtp_layers();
        if let Some(layer) = i32::try_from(layer).ok().filter(|_| known) {
            // SAFETY: the context is alive, and the layer exists. The call sets a number.
            unsafe { foredraft_set_mtp_layer(self.ptr.as_ptr(), layer) };
        }
        known
    }

    /// Initializes a new context: those of heads that need hidden states keep them.
    pub(crate) fn begin_hidden(&mut self) {
        let keep = self.hidden.is_input();
        self.keep_hidden(keep);
        self.begin_block();
    }

    /// If tokens need hidden states, adds zeros for the tokens of `batch` without one, as at the beginning of a text.
    pub fn pad_hidden(&self, batch: &mut Batch) {
        if self.hidden.is_input() {
            batch.hidden.resize(batch.len() * self.n_embd, 0.0);
        }
    }

    /// Validates the length of the hidden states, beyond which llama.cpp would read.
    pub(crate) fn validate_hidden(&self, batch: &Batch) -> std::result::Result<(), String> {
        let width = match batch.input {
            BatchInput::Tokens => {
                if self.hidden.is_input() {
                    self.n_embd
                } else {
                    0
                }
            }
            _ if self.hidden.is_head() => return Err("a head decodes no rows".into()),
            _ => self.model.n_embd_input(),
        };
        let expected = batch.len() * width;
        match batch.hidden.len() {
            len if len == expected => Ok(()),
            len => Err(format!("hidden states: expected {expected} numbers, got {len}")),
        }
    }
}
