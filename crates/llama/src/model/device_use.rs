//! The layers and the bytes of buffers on each device.

use std::ptr::null_mut;

use llama_cpp_sys_2 as sys;

use crate::guard::{self, Buffers, ErrorBuffer};
use crate::log;
use crate::sources::gguf_source::GgufFile;
use foredraft_native::foredraft_adapter_buffers;

/// More types of buffers than a model has.
pub(crate) const MOST_BUFFERS: usize = 64;

pub(crate) const NO_BUFFERS: Buffers = Buffers { device: null_mut(), weights: 0, kv_cache: 0, compute: 0 };

/// The layers and buffers of a model and its contexts on a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceUse {
    /// The device's name.
    pub device: String,
    /// The number of layers that it computes.
    pub n_layers: usize,
    /// Whether the device computes the output layer, which `n_gpu_layers` counts as one more.
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

/// The layers and buffers of a model and its contexts on all devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DevicePlacement(Vec<DeviceUse>);

impl DevicePlacement {
    /// The devices.
    pub fn devices(&self) -> &[DeviceUse] {
        &self.0
    }

    /// The entry of a device.
    pub fn on(&self, device: &str) -> Option<&DeviceUse> {
        self.0.iter().find(|known| known.device == device)
    }

    /// The weights of LoRA adapters of a model, by the heads of their files.
    ///
    /// # Safety
    /// The model is alive.
    pub(crate) unsafe fn of_adapters(model: *const sys::llama_model, adapters: &[GgufFile]) -> DevicePlacement {
        let mut placement = DevicePlacement::default();
        for adapter in adapters {
            // SAFETY: as the caller promises.
            unsafe { placement.add_adapter(model, adapter) };
        }
        placement
    }

    /// # Safety
    /// The model is alive.
    unsafe fn add_adapter(&mut self, model: *const sys::llama_model, adapter: &GgufFile) {
        let (mut buffers, mut why) = ([NO_BUFFERS; MOST_BUFFERS], ErrorBuffer::new());
        let (to, most) = (buffers.as_mut_ptr(), MOST_BUFFERS);
        // SAFETY: the model is alive, the adapter's path or stream is valid, and at most as many buffers are written as there are. The guard
        // catches exceptions. Log lines are dropped, because the loader repeats them.
        let (n, _) = log::collecting(|| unsafe {
            let (path, stream) = (adapter.path(), adapter.stream());
            foredraft_adapter_buffers(model, path, stream, to, most, why.ptr(), why.size())
        });
        for of in buffers.iter().take(n) {
            if let Some(on) = self.entry(of.device) {
                on.weights += of.weights;
            }
        }
    }

    /// The entry of a device, which is added if it is missing. `None` for NULL.
    pub(crate) fn entry(&mut self, device: sys::ggml_backend_dev_t) -> Option<&mut DeviceUse> {
        if device.is_null() {
            return None;
        }
        // SAFETY: devices live as long as the process, and their names are NUL-terminated.
        let name = unsafe { guard::text(sys::ggml_backend_dev_name(device)) };
        let index = self.0.iter().position(|known| known.device == name).unwrap_or_else(|| {
            self.0.push(DeviceUse { device: name, ..DeviceUse::default() });
            self.0.len() - 1
        });
        self.0.get_mut(index)
    }
}
