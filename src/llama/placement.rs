//! What models and contexts have on each device: layers, and bytes of buffers.

use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

use llama_cpp_sys_2 as sys;

use crate::error::{Error, Result};
use crate::llama::context::raw_params::raw_params;
use crate::llama::guard::{
    Buffers, ErrorBuffer, foredraft_adapter_buffers, foredraft_buffers_of, foredraft_context_new,
    foredraft_layer_device,
};
use crate::llama::params::ContextParams;
use crate::llama::sources::gguf_source::GgufFile;
use crate::llama::{Context, Interrupt, Model, backend, log};

/// More types of buffers than a model has.
const MOST_BUFFERS: usize = 64;

const NO_BUFFERS: Buffers = Buffers { device: null_mut(), weights: 0, kv_cache: 0, compute: 0 };

/// What a model and its contexts have on a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceUse {
    /// The device's name.
    pub device: String,
    /// The number of layers that it computes.
    pub n_layers: usize,
    /// Whether it computes the output layer, which `n_gpu_layers` counts as one more.
    pub has_output: bool,
    /// The bytes of weights, also of a mapped file, and of LoRA adapters.
    pub weights: u64,
    /// The bytes of KV caches and recurrent states.
    pub kv_cache: u64,
    /// The bytes of buffers for intermediate results.
    pub compute: u64,
}

impl DeviceUse {
    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.weights.saturating_add(self.kv_cache).saturating_add(self.compute)
    }
}

/// What a model and its contexts have on all devices that they use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DevicePlacement(Vec<DeviceUse>);

impl DevicePlacement {
    /// The devices.
    pub fn devices(&self) -> &[DeviceUse] {
        &self.0
    }

    /// What is on a device.
    pub fn on(&self, device: &str) -> Option<&DeviceUse> {
        self.0.iter().find(|known| known.device == device)
    }

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

    /// The weights of LoRA adapters of a model, by the heads of their files.
    pub(super) fn of_adapters(model: &Model, adapters: &[GgufFile]) -> DevicePlacement {
        let mut placement = DevicePlacement::default();
        adapters.iter().for_each(|adapter| placement.add_adapter(model, adapter));
        placement
    }

    fn add_adapter(&mut self, model: &Model, adapter: &GgufFile) {
        let (mut buffers, mut why) = ([NO_BUFFERS; MOST_BUFFERS], ErrorBuffer::new());
        let (to, most) = (buffers.as_mut_ptr(), MOST_BUFFERS);
        // SAFETY: the model is alive, the adapter's path or stream is valid, and at most as many buffers are written as there are. The guard
        // catches exceptions. Log lines are dropped, because the loader repeats them.
        let (n, _) = log::collecting(|| unsafe {
            let (path, stream) = (adapter.path(), adapter.stream());
            foredraft_adapter_buffers(model.as_ptr(), path, stream, to, most, why.ptr(), why.size())
        });
        for of in buffers.iter().take(n) {
            if let Some(on) = self.entry(of.device) {
                on.weights += of.weights;
            }
        }
    }

    /// The entry of a device, which is added if it is missing. `None` for NULL.
    fn entry(&mut self, device: sys::ggml_backend_dev_t) -> Option<&mut DeviceUse> {
        if device.is_null() {
            return None;
        }
        // SAFETY: devices live as long as the process, and their names are NUL-terminated.
        let name = unsafe { backend::text(sys::ggml_backend_dev_name(device)) };
        let index = self.0.iter().position(|known| known.device == name).unwrap_or_else(|| {
            self.0.push(DeviceUse { device: name, ..DeviceUse::default() });
            self.0.len() - 1
        });
        self.0.get_mut(index)
    }
}

impl Model {
    /// Where its layers, weights and LoRA adapters are. Empty for a model that was loaded with `vocab_only`.
    pub fn placement(&self) -> DevicePlacement {
        if self.vocab_only() { DevicePlacement::default() } else { DevicePlacement::of_model(self) }
    }
}
