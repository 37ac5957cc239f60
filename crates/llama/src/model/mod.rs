//! A loaded model: owner of the weights, the vocabulary and the LoRA adapters.

pub(super) mod device_use;
pub(crate) mod identity;
mod load;
pub(super) mod pieces;
mod properties;
mod shared;
pub(super) mod special;
pub(super) mod tensor_placement;
pub(super) mod vocab;

use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use llama_cpp_sys_2 as sys;
use xxhash_rust::xxh3::Xxh3;

use crate::backend::levels::LevelInUse;
use crate::backend::rpc::UsedServers;
use crate::kernels::layouts::{PendingPanels, WeightLayout};
use crate::model::identity::Files;
use crate::sources::gguf_source::{DraftKind, WeightType};
use crate::{DevicePlacement, Interrupt, PausableLoad, Token, TokenTree, Vocab, VocabKind, Vocabulary};
use foredraft_base::error::Result;

/// The time for which threads that make panels leave the cores to those that compute. The panels of 1.5 B parameters take 2 s where cores are free, so
/// this is over only on a busy machine: at a load of 40, 477 MB were left after 159 s without an end to it.
const PANEL_PATIENCE: Duration = Duration::from_secs(10);

/// A loaded model. Immutable, so one [`Arc`](std::sync::Arc) of it serves every thread.
#[derive(Debug)]
pub struct Model {
    ptr: NonNull<sys::llama_model>,
    vocab: Vocab,
    adapters: Vec<(NonNull<sys::llama_adapter_lora>, f32)>,
    /// The weights that the adapters have on each device, or would have.
    adapter_placement: DevicePlacement,
    vocab_only: bool,
    files: Files,
    fallback_weights: Vec<(String, u32)>,
    weight_layouts: Vec<WeightLayout>,
    pending_panels: PendingPanels,
    /// Made before the first request with a grammar begins.
    token_tree: OnceLock<TokenTree>,
    /// Lets the thread that makes panels sleep while the host pauses the engine that loaded the model, and wakes it.
    panel_interrupt: Arc<Interrupt>,
    draft_kind: DraftKind,
    weight_type: WeightType,
    /// The RPC servers that have parts of it.
    servers: UsedServers,
    /// No other level is used while the model is loaded.
    _level: LevelInUse,
}

// SAFETY: after loading, llama.cpp only reads a model. Contexts have their own state.
unsafe impl Send for Model {}
// SAFETY: as above.
unsafe impl Sync for Model {}

impl Model {
    /// Begins to make panels of the weights that are still as in the file, on a thread of its own, once those of the model `before` are made. Engines call
    /// it when their load has measured.
    pub fn make_panels(&self, before: Option<&Model>) {
        let interrupt = Arc::clone(&self.panel_interrupt);
        self.pending_panels.begin(before.map(|model| &model.pending_panels), PANEL_PATIENCE, move |make| {
            let _pausable = PausableLoad::begin(&interrupt);
            make();
        });
    }

    /// The types of weights that ggml multiplies, because no kernel of this library does, and the number of such tensors.
    pub fn fallback_weights(&self) -> &[(String, u32)] {
        &self.fallback_weights
    }

    /// The layout of each type of weights that can be in panels.
    pub fn weight_layouts(&self) -> &[WeightLayout] {
        &self.weight_layouts
    }

    /// The bytes of weights that are still as in the file, while panels are made of them.
    pub fn pending_panel_bytes(&self) -> u64 {
        self.pending_panels.bytes_left()
    }

    /// Whether a draft can read panels of fewer bits than the file's weights.
    pub(crate) fn has_all_panels(&self) -> bool {
        self.pending_panels.are_made()
    }

    /// Whether a thread makes panels of its weights now.
    pub fn is_making_panels(&self) -> bool {
        self.pending_panels.is_making()
    }

    /// How it drafts, as its file says.
    pub fn draft_kind(&self) -> DraftKind {
        self.draft_kind
    }

    /// The type that the load gave to its weights.
    pub fn weight_type(&self) -> WeightType {
        self.weight_type
    }

    /// The RPC servers that have parts of it.
    pub(crate) fn servers(&self) -> &UsedServers {
        &self.servers
    }

    /// The vocabulary.
    pub fn vocab(&self) -> &Vocab {
        &self.vocab
    }

    /// Whether the tree of its tokens is made.
    pub fn has_token_tree(&self) -> bool {
        self.token_tree.get().is_some()
    }

    /// Whether only the vocabulary was loaded, so the model cannot be decoded.
    pub fn vocab_only(&self) -> bool {
        self.vocab_only
    }

    /// The properties, with names, that identify this model and its adapters.
    pub fn identity(&self) -> &[(&'static str, String)] {
        self.files.identity(|| {
            let vocab = self.vocab();
            let mut tokens = Xxh3::new();
            for token in 0..Token::try_from(vocab.n_tokens()).unwrap_or(Token::MAX) {
                tokens.update(vocab.raw_text(token).as_bytes());
                tokens.update(&[0]);
            }
            vec![
                ("architecture", self.metadata("general.architecture").unwrap_or_default()),
                ("model", self.description()),
                ("parameters", self.n_params().to_string()),
                ("bytes", self.size().to_string()),
                ("layers", self.n_layer().to_string()),
                ("embedding", self.n_embd().to_string()),
                ("vocabulary", format!("{} tokens, {:016x}", vocab.n_tokens(), tokens.digest())),
            ]
        })
    }

    pub(super) fn as_ptr(&self) -> *mut sys::llama_model {
        self.ptr.as_ptr()
    }

    /// The scales of the LoRA adapters in a load.
    pub fn lora_scales(&self) -> Vec<f32> {
        self.adapters.iter().map(|(_, scale)| *scale).collect()
    }

    /// The weights that the LoRA adapters have on each device, or would have if the model only measures.
    pub(super) fn adapter_placement(&self) -> &DevicePlacement {
        &self.adapter_placement
    }

    pub(super) fn adapters(&self) -> &[(NonNull<sys::llama_adapter_lora>, f32)] {
        &self.adapters
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.pending_panels.stop(|| self.panel_interrupt.raise());
        // SAFETY: this is the only owner, and no thread makes panels. Contexts hold an `Arc` of it, so there are none.
        unsafe { sys::llama_model_free(self.ptr.as_ptr()) }
    }
}

impl Vocabulary for Model {
    fn n_tokens(&self) -> usize {
        self.vocab().n_tokens()
    }

    fn has_text(&self) -> bool {
        self.vocab().kind() != VocabKind::None
    }

    fn piece(&self, token: Token) -> &[u8] {
        self.vocab().piece(token)
    }

    fn text(&self, token: Token) -> &[u8] {
        self.vocab().text(token)
    }

    fn is_eog(&self, token: Token) -> bool {
        self.vocab().is_eog(token)
    }

    fn token_tree(&self) -> Option<&TokenTree> {
        Some(self.token_tree.get_or_init(|| self.make_token_tree()))
    }

    fn newline(&self) -> Option<Token> {
        self.vocab().newline()
    }

    fn tokenize(&self, text: &[u8], parse_special: bool) -> Result<Vec<Token>> {
        self.vocab().tokenize(text, false, parse_special)
    }
}

#[cfg(all(own_kernels, target_os = "linux"))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::ModelParams;

    #[test]
    fn panels_that_yielding_threads_leave_are_made_without_yielding() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/stories-target.gguf");
        for patience in [Duration::ZERO, Duration::from_millis(1), PANEL_PATIENCE] {
            let model = Model::load(&ModelParams::new(path), |_| true).unwrap();
            assert!(model.pending_panel_bytes() > 0);
            model.pending_panels.begin(None, patience, |make| make());
            while model.is_making_panels() {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(model.pending_panel_bytes(), 0, "{patience:?}");
        }
        // Stopped in either part, or before it has begun.
        let never_made = Model::load(&ModelParams::new(path), |_| true).unwrap();
        for patience in [Duration::ZERO, PANEL_PATIENCE].repeat(20) {
            let model = Model::load(&ModelParams::new(path), |_| true).unwrap();
            model.pending_panels.begin(None, patience, |make| make());
            let waiting = Model::load(&ModelParams::new(path), |_| true).unwrap();
            waiting.pending_panels.begin(Some(&never_made.pending_panels), PANEL_PATIENCE, |make| make());
        }
    }

    #[test]
    fn panels_of_two_models_are_made_one_after_the_other() {
        let load = || {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/stories-target.gguf");
            Model::load(&ModelParams::new(path), |_| true).unwrap()
        };
        let (first, second) = (load(), load());
        let of_second = second.pending_panel_bytes();
        second.make_panels(Some(&first));
        first.make_panels(None);
        while second.pending_panel_bytes() > 0 {
            let left = second.pending_panel_bytes();
            assert!(left == of_second || first.pending_panel_bytes() == 0, "{left} of {of_second} bytes were left");
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
