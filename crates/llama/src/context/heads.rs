//! Draft heads: small models that draft with the states of their target's layers. EAGLE-3 (arXiv 2503.01840) predicts token by token, from
//! the states of the token before; DFlash and DSpark predict a block in one pass, with the states of all tokens before it in their KV cache.
//! Assistants of Gemma 4 have no KV cache: their layers read that of their target's last layers.
//!
//! A head can lack embeddings and output weights; llama.cpp then takes those of the target, through the target's context.

use std::sync::Arc;

use llama_cpp_sys_2 as sys;

use crate::context::hidden::{Hidden, LayerState};
use crate::context::without_memory;
use crate::guard::ErrorBuffer;
use crate::params::{CacheType, FlashAttn};
use crate::{Context, ContextParams, DecodeError, DraftKind, Interrupt, Model, SeqId, ThreadPool, Token};
use foredraft_base::HiddenStates;
use foredraft_base::error::{Error, Result};
use foredraft_native::{
    foredraft_hidden, foredraft_keep_layer_input, foredraft_layer_inputs, foredraft_reads_cache,
    foredraft_target_layers,
};

/// The numbers of positions that llama.cpp reads for each row of states, at most: rotary embeddings of several dimensions have so many.
const POSITIONS: usize = 4;
/// The block of a DFlash head whose file does not say its size, as in llama.cpp.
const DEFAULT_BLOCK: usize = 16;

/// The block of tokens that a DFlash or DSpark head predicts in one pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftBlock {
    /// The token that stands for those to predict.
    pub mask: Token,
    /// The most tokens in a pass: the last one of the context, and masks.
    pub size: usize,
    /// The index in the pass of the row that predicts the first token. 0: the context's last token predicts it.
    pub first_row: usize,
}

impl DraftBlock {
    /// The most tokens that a pass predicts.
    pub fn most(self) -> usize {
        self.size - self.first_row
    }
}

impl Model {
    /// The layers of its target that a draft head reads. Empty if it is none.
    fn target_layers(&self) -> Vec<u32> {
        let mut layers = std::ptr::null();
        // SAFETY: the model is alive. The numbers belong to it, and do not change.
        let layers = unsafe {
            let n = foredraft_target_layers(self.as_ptr(), &raw mut layers);
            if n == 0 { &[] } else { std::slice::from_raw_parts(layers, n) }
        };
        layers.iter().map(|layer| u32::try_from(*layer).unwrap_or(u32::MAX)).collect()
    }

    /// The block of a DFlash or DSpark head.
    ///
    /// # Errors
    /// The file has no mask token, or a block in which nothing is predicted.
    pub fn block(&self) -> Result<DraftBlock> {
        let is_true = |key: &str, absent| self.metadata_of_kind(key).map_or(absent, |value| value == "true");
        let size = self.metadata_of_kind("block_size").map_or(Some(DEFAULT_BLOCK), |size| size.parse().ok());
        let reads_anchor = self.draft_kind() == DraftKind::Dspark && is_true("sample_from_anchor", true);
        let first_row = usize::from(!reads_anchor);
        let size = size.filter(|size| *size > first_row && *size <= 4096);
        // SAFETY: the vocabulary lives as long as the model.
        let mask = unsafe { sys::llama_vocab_mask(sys::llama_model_get_vocab(self.as_ptr())) };
        match size {
            _ if !self.vocab().contains(mask) => Err(Error::model("its vocabulary has no mask token")),
            Some(size) => Ok(DraftBlock { mask, size, first_row }),
            None => Err(Error::model("its block_size is not the size of a block")),
        }
    }

    /// The parameters of a head's context, with room for a block behind the target's context.
    pub(crate) fn with_block(&self, params: &ContextParams) -> ContextParams {
        let block = self.draft_kind().drafts_blocks().then(|| self.block().ok()).flatten();
        let more = block.map_or(0, |block| u32::try_from(block.size).unwrap_or(0));
        ContextParams { n_ctx: params.n_ctx.map(|n_ctx| n_ctx.saturating_add(more)), ..params.clone() }
    }

    /// The width of the states that a layer passes on.
    fn layer_width(&self) -> usize {
        // SAFETY: the model is alive.
        usize::try_from(unsafe { sys::llama_model_n_embd(self.as_ptr()) }).unwrap_or(0)
    }

    /// Why this head cannot draft for `target`: it was made for another one.
    pub(crate) fn foreign_to(&self, target: &Model) -> Option<String> {
        let architecture = |model: &Model| model.metadata("general.architecture").unwrap_or_default();
        let (width, own_width) = (target.layer_width(), self.layer_width());
        let (n_vocab, own_n_vocab) = (target.vocab().n_tokens(), self.vocab().n_tokens());
        let expected = match self.draft_kind() {
            DraftKind::Model => return Some("it has layers of its own, and drafts by itself".to_owned()),
            DraftKind::Mtp => {
                let (own, of_target) = (architecture(self), architecture(target));
                if own != of_target {
                    return Some(format!("its architecture is {own}, the target's {of_target}"));
                }
                self.n_embd()
            }
            DraftKind::Eagle3 => {
                let width = self.metadata_of_kind("target_hidden_size").and_then(|width| width.parse().ok());
                width.unwrap_or(own_width)
            }
            DraftKind::Dflash | DraftKind::Dspark => own_width,
            DraftKind::Assistant => {
                let of_target = architecture(target);
                if of_target != "gemma4" {
                    return Some(format!("the target's architecture is {of_target}, not gemma4"));
                }
                self.n_embd()
            }
        };
        let width = if self.draft_kind() == DraftKind::Mtp { target.n_embd() } else { width };
        if expected != width {
            return Some(format!("it reads states of {expected} numbers, and the target's have {width}"));
        }
        if own_n_vocab != n_vocab {
            return Some(format!("its vocabulary has {own_n_vocab} tokens, the target's {n_vocab}"));
        }
        let n_layer = target.n_layer();
        let beyond = self.target_layers().into_iter().find(|layer| *layer as usize > n_layer);
        if let Some(layer) = beyond {
            return Some(format!("it reads layer {layer}, and the target has {n_layer}"));
        }
        if self.draft_kind() != DraftKind::Assistant {
            return None;
        }
        let mut why = ErrorBuffer::new();
        // SAFETY: both models are alive. The guard catches exceptions.
        let reads = unsafe { foredraft_reads_cache(self.as_ptr(), target.as_ptr(), why.ptr(), why.size()) };
        (!reads).then(|| why.message())
    }
}

impl Context {
    /// Creates a context of a draft head for `target`, which then keeps what the head reads of its layers.
    ///
    /// # Errors
    /// The head was made for another target, the target's architecture does not give the states of its layers, or llama.cpp cannot decode
    /// the head.
    pub fn head(
        model: &Arc<Model>,
        target: &mut Context,
        params: &ContextParams,
        threads: &Arc<ThreadPool>,
        interrupt: &Arc<Interrupt>,
    ) -> Result<Context> {
        let kind = model.draft_kind();
        if let Some(why) = model.foreign_to(&target.model) {
            return Err(Error::model(format!("is a head for another model: {why}")));
        }
        if kind == DraftKind::Mtp {
            target.test_hidden()?;
            return Context::mtp(model, params, threads, interrupt);
        }
        if kind == DraftKind::Assistant {
            target.test_hidden()?;
            let (params, hidden) = (target.sharing(params), Hidden::of_head(kind));
            let made = Context::make(model, &params, threads, interrupt, hidden, Some(target));
            return made?.ok_or_else(without_memory);
        }
        if kind.drafts_blocks() {
            model.block()?;
        }
        let params = model.with_block(params);
        let n_layer = u32::try_from(target.model.n_layer()).unwrap_or(u32::MAX);
        let state = |layer| match kind {
            // As in llama.cpp: few architectures give the input of what follows the last layer.
            DraftKind::Eagle3 if layer == n_layer => LayerState::Hidden,
            _ => LayerState::InputOf(layer),
        };
        target.keep_layers(model.target_layers().into_iter().map(state).collect())?;
        let hidden = Hidden::of_head(kind);
        let made = Context::make(model, &params, threads, interrupt, hidden, Some(target));
        let mut context = made?.ok_or_else(without_memory)?;
        context.n_features = target.n_features;
        let features = vec![0.0; context.n_features];
        let works = context.on_this_thread(|context| match kind {
            DraftKind::Eagle3 => context.encode(&features, &mut Vec::new()),
            _ => context.inject(&features, 0, 0),
        });
        context.reset();
        works.map_err(|error| Error::model(format!("cannot be decoded: {error:?}")))?;
        Ok(context)
    }

    /// The parameters of a context that reads this one's memory. llama.cpp takes the size and the types of the cells from there, but not how
    /// many buffers there are, nor how values lie in them, which follows from the attention.
    fn sharing(&self, params: &ContextParams) -> ContextParams {
        ContextParams {
            n_seq_max: u32::try_from(self.n_seq_max).unwrap_or(1),
            kv_unified: self.unified,
            flash_attn: if self.flash_attention { FlashAttn::Auto } else { FlashAttn::Off },
            type_k: CacheType::F16,
            type_v: CacheType::F16,
            ..params.clone()
        }
    }

    /// Prepares a context of a head that predicts blocks: all tokens of a block see each other, unless its file says otherwise.
    pub(super) fn begin_block(&mut self) {
        if self.hidden.head().drafts_blocks() {
            let causal = self.model.metadata_of_kind("attention.causal").is_some_and(|value| value == "true");
            // SAFETY: the context is alive. The call sets a flag.
            unsafe { sys::llama_set_causal_attn(self.ptr.as_ptr(), causal) };
        }
    }

    /// Lets all later decodes keep these states of each token. Tests that they can, as [`Context::new`] tests that decodes work.
    fn keep_layers(&mut self, layers: Vec<LayerState>) -> Result<()> {
        let n_layers = layers.len();
        self.set_layers(&layers, true);
        self.hidden.layers = layers;
        self.keep_hidden(self.reads_hidden());
        let mut features = Vec::new();
        let decoded = self.on_this_thread(|context| {
            let decoded = context.decode_first_token(0);
            decoded.map(|()| context.layer_states(0, &mut features))
        });
        self.truncate(0, 0);
        self.keep_hidden(false);
        if decoded == Ok(true) {
            self.n_features = n_layers * self.model.layer_width();
            return Ok(());
        }
        let layers = std::mem::take(&mut self.hidden.layers);
        self.set_layers(&layers, false);
        let architecture = self.model.metadata("general.architecture").unwrap_or_default();
        Err(Error::model(format!(
            "it reads states of the target's layers, which llama.cpp does not give for the architecture {architecture}"
        )))
    }

    fn set_layers(&mut self, layers: &[LayerState], keep: bool) {
        let n_layer = u32::try_from(self.model.n_layer()).unwrap_or(0);
        for layer in layers {
            if let LayerState::InputOf(layer) = *layer
                && layer <= n_layer
            {
                let mut why = ErrorBuffer::new();
                // SAFETY: the context is alive, and there is such a layer. The guard catches exceptions.
                unsafe { foredraft_keep_layer_input(self.ptr.as_ptr(), layer, keep, why.ptr(), why.size()) };
            }
        }
    }

    /// Whether a head reads the hidden states after the last layer, which [`Context::keep_hidden`] keeps.
    pub fn reads_hidden(&self) -> bool {
        self.hidden.layers.contains(&LayerState::Hidden)
    }

    /// Whether a draft head reads states of this context.
    pub fn feeds_head(&self) -> bool {
        !self.hidden.layers.is_empty()
    }

    /// The input of a layer that decodes keep, for the token at `index` of the last batch.
    fn layer_input(&mut self, layer: u32, index: usize) -> Option<&[f32]> {
        let width = self.model.layer_width();
        if index >= self.has_logits.len() {
            return None;
        }
        let mut why = ErrorBuffer::new();
        // SAFETY: the last decode succeeded, and kept a row of `width` floats for each of its tokens. The rows belong to the context, and are
        // valid until the next decode, which needs `&mut self`. The guard catches exceptions.
        unsafe {
            let rows = foredraft_layer_inputs(self.ptr.as_ptr(), layer, why.ptr(), why.size());
            (!rows.is_null()).then(|| std::slice::from_raw_parts(rows.add(index * width), width))
        }
    }

    /// The number of states' numbers of each token that a head reads: see [`Context::layer_states`].
    pub fn n_features(&self) -> usize {
        self.n_features
    }

    /// Turns what an EAGLE-3 head reads of its target's tokens into the hidden states that its own tokens need, which it appends to `states`.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn encode(&mut self, features: &[f32], states: &mut Vec<f32>) -> std::result::Result<(), DecodeError> {
        let n_ubatch = self.n_ubatch().max(1);
        for part in features.chunks(n_ubatch * self.n_features.max(1)) {
            // llama.cpp demands that positions follow those in the cache, which the encoder does not use.
            let position = self.len(0);
            let n = self.run_features(part, true, position, 0)?;
            for row in 0..n {
                let state = self.hidden(row).ok_or_else(|| DecodeError::failed("the head has no states"))?;
                states.extend_from_slice(state);
            }
        }
        Ok(())
    }

    /// Adds what a DFlash or DSpark head reads of its target's tokens to its KV cache, from `position` of `sequence` on.
    ///
    /// # Errors
    /// See [`DecodeError`]. Part of the tokens may be in the cache.
    pub fn inject(
        &mut self,
        features: &[f32],
        position: usize,
        sequence: SeqId,
    ) -> std::result::Result<(), DecodeError> {
        let most = self.n_ubatch().max(1);
        let mut position = position;
        for part in features.chunks(most * self.n_features.max(1)) {
            position += self.run_features(part, false, position, sequence)?;
        }
        Ok(())
    }

    /// Runs the encoder, or the decoder, on rows of features instead of tokens. Returns their number.
    fn run_features(
        &mut self,
        features: &[f32],
        encoder: bool,
        position: usize,
        sequence: SeqId,
    ) -> std::result::Result<usize, DecodeError> {
        let n = features.len() / self.n_features.max(1);
        let is_right = match self.hidden.head() {
            DraftKind::Eagle3 => encoder,
            DraftKind::Dflash | DraftKind::Dspark => !encoder,
            DraftKind::Model | DraftKind::Mtp | DraftKind::Assistant => false,
        };
        let fits = n > 0 && n <= self.n_batch && n * self.n_features == features.len();
        if !is_right || !fits || !self.has_sequence(sequence) {
            return Err(DecodeError::failed(format!("{n} rows of {} numbers", self.n_features)));
        }
        self.has_logits.clear();
        let first = i32::try_from(position).unwrap_or(i32::MAX);
        // As of a token: the same in all dimensions but the last, which is 0.
        let positions: Vec<i32> = (0..POSITIONS)
            .flat_map(|dimension| (first..).take(n).map(move |at| if dimension + 1 < POSITIONS { at } else { 0 }))
            .collect();
        let (counts, mut own) = (vec![1; n], sequence);
        let mut sequences = vec![&raw mut own; n];
        let outputs = vec![i8::from(encoder); n];
        let raw = sys::llama_batch {
            n_tokens: i32::try_from(n).unwrap_or(0),
            token: std::ptr::null_mut(),
            embd: features.as_ptr().cast_mut(),
            pos: positions.as_ptr().cast_mut(),
            n_seq_id: counts.as_ptr().cast_mut(),
            seq_id: sequences.as_mut_ptr(),
            logits: outputs.as_ptr().cast_mut(),
        };
        // SAFETY: all arrays have `n` elements and live during the call; the rows have the length of the head's input, which `foreign_to` has
        // compared. The encoder gets no more than a physical batch.
        unsafe { self.run(raw, encoder, false, (self.n_threads.1, self.thread_settings.1)) }?;
        self.has_logits.extend(outputs.iter().map(|output| *output != 0));
        self.hidden.decoded();
        Ok(n)
    }
}

impl HiddenStates for Context {
    fn hidden(&mut self, index: usize) -> Option<&[f32]> {
        let has_logits = *self.has_logits.get(index)?;
        if !self.hidden.available || (self.hidden.is_input() && !has_logits) {
            return None;
        }
        let row = i32::try_from(index).ok()?;
        let mut why = ErrorBuffer::new();
        // SAFETY: the last decode succeeded and kept the hidden state of this token. A row has `n_embd` floats
        // (`llama_model_n_embd_out`, llama.cpp's stride), belongs to the context, and is valid until the next decode, which needs
        // `&mut self`. The guard catches exceptions.
        unsafe {
            let row = foredraft_hidden(self.ptr.as_ptr(), row, why.ptr(), why.size());
            (!row.is_null()).then(|| std::slice::from_raw_parts(row, self.n_embd))
        }
    }

    fn layer_states(&mut self, index: usize, to: &mut Vec<f32>) -> bool {
        let (len, width) = (to.len(), self.model.layer_width());
        for place in 0..self.hidden.layers.len() {
            let found = match self.hidden.layers.get(place).copied() {
                Some(LayerState::Hidden) => self.hidden(index).map(|state| to.extend_from_slice(state)),
                Some(LayerState::InputOf(layer)) => {
                    self.layer_input(layer, index).map(|state| to.extend_from_slice(state))
                }
                None => None,
            };
            if found.is_none() || to.len() != len + (place + 1) * width {
                to.truncate(len);
                return false;
            }
        }
        !self.hidden.layers.is_empty()
    }
}
