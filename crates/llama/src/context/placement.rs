//! Asks llama.cpp what models and contexts have on each device, or would have.

use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

use llama_cpp_sys_2 as sys;

use crate::context::raw_params::raw_params;
use crate::guard::ErrorBuffer;
use crate::model::device_use::{DevicePlacement, MOST_BUFFERS, NO_BUFFERS};
use crate::params::ContextParams;
use crate::{Context, DraftKind, Interrupt, Model, log};
use foredraft_base::error::{Error, Result};
use foredraft_native::{foredraft_buffers_of, foredraft_context_new, foredraft_layer_device};

impl DevicePlacement {
    /// Adds a context's KV cache and its buffers.
    pub fn add_context(&mut self, context: &Context) {
        self.add_buffers(context.model().as_ptr(), context.as_ptr(), false);
    }

    /// Adds what a context of these parameters would have. Nothing large is allocated if the model
    /// [only measures](crate::ModelParams::only_measures).
    ///
    /// # Errors
    /// llama.cpp refuses the parameters.
    pub fn add_estimate(&mut self, model: &Model, params: &ContextParams) -> Result<()> {
        self.add_estimate_as(sys::LLAMA_CONTEXT_TYPE_DEFAULT, model, params, None)
    }

    /// As [`DevicePlacement::add_estimate`], for a context of the model's MTP layers ([`Context::mtp`]).
    ///
    /// # Errors
    /// llama.cpp refuses the parameters.
    pub fn add_mtp_estimate(&mut self, model: &Model, params: &ContextParams) -> Result<()> {
        self.add_estimate_as(sys::LLAMA_CONTEXT_TYPE_MTP, model, params, None)
    }

    /// As [`DevicePlacement::add_estimate`], for a context of a draft head ([`Context::head`]), which may use weights of `target`.
    ///
    /// # Errors
    /// llama.cpp refuses the parameters, of the head's context or of a small one of the target.
    pub fn add_head_estimate(&mut self, head: &Model, params: &ContextParams, target: &Model) -> Result<()> {
        if let Some(why) = head.foreign_to(target) {
            return Err(Error::model(why));
        }
        let reads_cache = head.draft_kind() == DraftKind::Assistant;
        let kind = if reads_cache { sys::LLAMA_CONTEXT_TYPE_MTP } else { sys::LLAMA_CONTEXT_TYPE_DEFAULT };
        let of_target = if reads_cache { params.clone() } else { small(params) };
        let of_target = MeasuredContext::new(sys::LLAMA_CONTEXT_TYPE_DEFAULT, target, &of_target, None)?;
        let params = head.with_block(&ContextParams { n_rollback: 0, ..params.clone() });
        self.add_estimate_as(kind, head, &params, Some(&of_target))
    }

    fn add_estimate_as(
        &mut self,
        kind: sys::llama_context_type,
        model: &Model,
        params: &ContextParams,
        other: Option<&MeasuredContext>,
    ) -> Result<()> {
        let context = MeasuredContext::new(kind, model, params, other)?;
        self.add_buffers(model.as_ptr(), context.ptr.as_ptr(), false);
        Ok(())
    }

    /// The bytes that a sequence of a context of these parameters takes more for each token that it can roll back. 0: the model's architecture
    /// keeps no earlier states. Small contexts are made to find out.
    ///
    /// # Errors
    /// llama.cpp refuses the parameters.
    pub fn bytes_per_earlier_state(model: &Model, params: &ContextParams) -> Result<u64> {
        let bytes = |n_rollback| {
            let mut placement = DevicePlacement::default();
            placement.add_estimate(model, &ContextParams { n_rollback, ..small(params) })?;
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

/// The parameters of a context of one short sequence.
fn small(params: &ContextParams) -> ContextParams {
    const SMALL: u32 = 32;
    ContextParams { n_ctx: Some(SMALL), n_batch: SMALL, n_ubatch: SMALL, n_seq_max: 1, ..params.clone() }
}

/// A context that is made to ask for its buffers.
struct MeasuredContext {
    ptr: NonNull<sys::llama_context>,
    /// llama.cpp has a pointer to it.
    _interrupt: Arc<Interrupt>,
}

impl MeasuredContext {
    /// `other`: the context of a head's target, which outlives it.
    fn new(
        kind: sys::llama_context_type,
        model: &Model,
        params: &ContextParams,
        other: Option<&MeasuredContext>,
    ) -> Result<MeasuredContext> {
        let interrupt = Arc::new(Interrupt::default());
        let mut raw = raw_params(params, model, &interrupt);
        raw.ctx_type = kind;
        raw.ctx_other = other.map_or(null_mut(), |other| other.ptr.as_ptr());
        let mut why = ErrorBuffer::new();
        // SAFETY: the model is alive. `raw` is plain data; its only pointers are the interrupt and the other context, which outlive the context.
        // The guard catches exceptions.
        let (context, errors) =
            log::collecting(|| unsafe { foredraft_context_new(model.as_ptr(), raw, why.ptr(), why.size()) });
        let ptr =
            NonNull::new(context).ok_or_else(|| Error::model(format!("{} {}", errors.join("; "), why.message())))?;
        Ok(MeasuredContext { ptr, _interrupt: interrupt })
    }
}

impl Drop for MeasuredContext {
    fn drop(&mut self) {
        // SAFETY: the context is alive, and nothing else uses it.
        unsafe { sys::llama_free(self.ptr.as_ptr()) };
    }
}

impl Model {
    /// Where its layers, weights and LoRA adapters are. Empty for a model that was loaded with `vocab_only`.
    pub fn placement(&self) -> DevicePlacement {
        if self.vocab_only() { DevicePlacement::default() } else { DevicePlacement::of_model(self) }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{ModelParams, ThreadPool};

    fn params(name: &str, only_measures: bool) -> ModelParams {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name);
        ModelParams { only_measures, ..ModelParams::new(path) }
    }

    /// The shipped head has neither embeddings nor output weights.
    #[test]
    fn head_that_uses_weights_of_its_target_is_estimated() {
        let context = ContextParams { n_ctx: Some(512), n_threads: 1, n_threads_batch: 1, ..ContextParams::default() };
        let estimated = {
            let target = Model::load(&params("stories-target.gguf", true), |_| true).unwrap();
            let head = Model::load_draft(&params("stories-eagle3.gguf", true), |_| true).unwrap();
            let mut estimated = DevicePlacement::default();
            estimated.add_head_estimate(&head, &context, &target).unwrap();
            estimated
        };
        let (threads, interrupt) = (Arc::new(ThreadPool::new(1).unwrap()), Arc::new(Interrupt::default()));
        let target = Arc::new(Model::load(&params("stories-target.gguf", false), |_| true).unwrap());
        let mut target = Context::new(&target, &context, &threads, &interrupt).unwrap();
        let head = Arc::new(Model::load_draft(&params("stories-eagle3.gguf", false), |_| true).unwrap());
        let mut real = DevicePlacement::default();
        real.add_context(&Context::head(&head, &mut target, &context, &threads, &interrupt).unwrap());
        let bytes = |placement: &DevicePlacement| placement.devices().iter().map(|on| on.kv_cache).sum::<u64>();
        assert!(bytes(&estimated) > 0 && bytes(&estimated) == bytes(&real), "{estimated:?} {real:?}");
        assert!(estimated.devices().iter().any(|on| on.compute > 0), "{estimated:?}");
    }
}
