//! Asks llama.cpp what models and contexts have on each device, or would have.

use std::ptr::{NonNull, null};
use std::sync::Arc;

use llama_cpp_sys_2 as sys;

use crate::error::{Error, Result};
use crate::llama::context::raw_params::raw_params;
use crate::llama::device_use::{DevicePlacement, MOST_BUFFERS, NO_BUFFERS};
use crate::llama::guard::{ErrorBuffer, foredraft_buffers_of, foredraft_context_new, foredraft_layer_device};
use crate::llama::params::ContextParams;
use crate::llama::{Context, Interrupt, Model, log};

impl DevicePlacement {
    /// Adds a context's KV cache and its buffers.
    pub fn add_context(&mut self, context: &Context) {
        self.add_buffers(context.model().as_ptr(), context.as_ptr(), false);
    }

    /// Adds what a context of these parameters would have. Nothing large is allocated if the model
    /// [only measures](crate::llama::ModelParams::only_measures).
    ///
    /// # Errors
    /// llama.cpp refuses the parameters.
    pub fn add_estimate(&mut self, model: &Model, params: &ContextParams) -> Result<()> {
        self.add_estimate_as(sys::LLAMA_CONTEXT_TYPE_DEFAULT, model, params)
    }

    /// As [`DevicePlacement::add_estimate`], for a context of the model's MTP layers ([`Context::mtp`]).
    ///
    /// # Errors
    /// llama.cpp refuses the parameters.
    pub fn add_mtp_estimate(&mut self, model: &Model, params: &ContextParams) -> Result<()> {
        self.add_estimate_as(sys::LLAMA_CONTEXT_TYPE_MTP, model, params)
    }

    fn add_estimate_as(&mut self, kind: sys::llama_context_type, model: &Model, params: &ContextParams) -> Result<()> {
        let interrupt = Arc::new(Interrupt::default());
        let mut raw = raw_params(params, model, &interrupt);
        raw.ctx_type = kind;
        let mut why = ErrorBuffer::new();
        // SAFETY: the model is alive. `raw` is plain data; its only pointer is the interrupt, which outlives the context. The guard catches
        // exceptions.
        let (context, errors) =
            log::collecting(|| unsafe { foredraft_context_new(model.as_ptr(), raw, why.ptr(), why.size()) });
        let context =
            NonNull::new(context).ok_or_else(|| Error::model(format!("{} {}", errors.join("; "), why.message())))?;
        self.add_buffers(model.as_ptr(), context.as_ptr(), false);
        // SAFETY: the context is alive, and nothing else has it.
        unsafe { sys::llama_free(context.as_ptr()) };
        Ok(())
    }

    /// The bytes that a sequence of a context of these parameters takes more for each token that it can roll back. 0: the model's architecture
    /// keeps no earlier states. Small contexts are made to find out.
    ///
    /// # Errors
    /// llama.cpp refuses the parameters.
    pub fn bytes_per_earlier_state(model: &Model, params: &ContextParams) -> Result<u64> {
        const SMALL: u32 = 32;
        let bytes = |n_rollback| {
            let mut placement = DevicePlacement::default();
            let small =
                ContextParams { n_ctx: Some(SMALL), n_batch: SMALL, n_ubatch: SMALL, n_seq_max: 1, ..params.clone() };
            placement.add_estimate(model, &ContextParams { n_rollback, ..small })?;
            Ok(placement.devices().iter().map(|on| on.kv_cache).sum::<u64>())
        };
        Ok(bytes(1)?.saturating_sub(bytes(0)?))
    }

    fn of_model(model: &Model) -> DevicePlacement {
        let mut placement = model.adapter_placement().clone();
        placement.add_buffers(model.as_ptr(), null(), true);
        let n_layers = i32::try_from(model.n_layer()).unwrap_or(0);
        for layer in 0..=n_layers {
            // SAFETY: the model is alive, and the guard catches exceptions.
            let device = unsafe { foredraft_layer_device(model.as_ptr(), layer) };
            if let Some(on) = placement.entry(device) {
                on.n_layers += usize::from(layer < n_layers);
                on.has_output |= layer == n_layers;
            }
        }
        placement
    }

    fn add_buffers(&mut self, model: *const sys::llama_model, ctx: *const sys::llama_context, weights: bool) {
        let (mut buffers, mut why) = ([NO_BUFFERS; MOST_BUFFERS], ErrorBuffer::new());
        // SAFETY: model and context are alive, and at most as many buffers are written as there are. The guard catches exceptions.
        let n = unsafe { foredraft_buffers_of(model, ctx, buffers.as_mut_ptr(), MOST_BUFFERS, why.ptr(), why.size()) };
        for of in buffers.iter().take(n) {
            let used = of.kv_cache > 0 || of.compute > 0 || (weights && of.weights > 0);
            if let Some(on) = self.entry(of.device).filter(|_| used) {
                on.weights += if weights { of.weights } else { 0 };
                on.kv_cache += of.kv_cache;
                on.compute += of.compute;
            }
        }
    }
}

impl Model {
    /// Where its layers, weights and LoRA adapters are. Empty for a model that was loaded with `vocab_only`.
    pub fn placement(&self) -> DevicePlacement {
        if self.vocab_only() { DevicePlacement::default() } else { DevicePlacement::of_model(self) }
    }
}
