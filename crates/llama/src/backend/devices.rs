//! The devices that ggml can compute on.

use std::ffi::CString;

use llama_cpp_sys_2 as sys;

use crate::backend::{self, rpc};
use crate::guard::{self, ErrorBuffer};
use crate::platform;
use foredraft_native::foredraft_device_memory;

/// A device of ggml.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The name, as used in a load's `devices`.
    pub name: String,
    /// A description.
    pub description: String,
    /// `cpu`, `gpu`, `igpu`, `accel` or `meta`.
    pub kind: &'static str,
    /// Free memory in bytes. 0: unknown, for example if an RPC server does not respond.
    pub memory_free: usize,
    /// Total memory in bytes.
    pub memory_total: usize,
}

/// All devices.
pub fn devices() -> Vec<Device> {
    backend::start();
    let mut found = Vec::new();
    // SAFETY: the indices are below the count, and devices live as long as the process. Their strings are static and NUL-terminated
    // (`backend::text` accepts NULL), and the numbers are writable.
    unsafe {
        for index in 0..sys::ggml_backend_dev_count() {
            let device = sys::ggml_backend_dev_get(index);
            let (mut memory_free, mut memory_total) = (0, 0);
            // A server could keep a call waiting, and ggml knows only the relay's address.
            let remote = rpc::rpc_device(device);
            if let Some(remote) = &remote {
                (memory_free, memory_total) = remote.memory;
            } else {
                let mut why = ErrorBuffer::new();
                foredraft_device_memory(device, &mut memory_free, &mut memory_total, why.ptr(), why.size());
            }
            let description = || guard::text(sys::ggml_backend_dev_description(device));
            found.push(Device {
                name: guard::text(sys::ggml_backend_dev_name(device)),
                description: remote.map_or_else(description, |remote| remote.endpoint),
                kind: match sys::ggml_backend_dev_type(device) {
                    sys::GGML_BACKEND_DEVICE_TYPE_CPU => "cpu",
                    sys::GGML_BACKEND_DEVICE_TYPE_GPU => "gpu",
                    sys::GGML_BACKEND_DEVICE_TYPE_IGPU => "igpu",
                    sys::GGML_BACKEND_DEVICE_TYPE_ACCEL => "accel",
                    _ => "meta",
                },
                memory_free,
                memory_total,
            });
        }
    }
    found
}

/// The bytes that this process can still get without swapping, limited as the process is. `None`: unknown.
pub fn available_memory() -> Option<u64> {
    platform::available_memory()
}

/// Says which device has not enough memory if messages of llama.cpp, the last of which it threw, are about that; else nothing.
pub(crate) fn shortage(messages: &[String], thrown: &str) -> String {
    let is_short = |device: &Device| {
        let names = |message: &String| message.contains("allocate") && message.contains(&device.name);
        device.kind != "cpu" && messages.iter().any(names)
    };
    let Some(device) = devices().into_iter().find(is_short) else { return shortage_of_host(messages, thrown) };
    format!(
        "{} has not enough memory ({} of {} MiB are free): use fewer n_gpu_layers, a smaller n_ctx, or \"fit\": true: ",
        device.name,
        device.memory_free >> 20,
        device.memory_total >> 20
    )
}

/// As [`shortage`], for the memory of the process.
fn shortage_of_host(messages: &[String], thrown: &str) -> String {
    const SIGNS: [&str; 4] = ["insufficient memory", "Cannot allocate memory", "failed to allocate", "bad_alloc"];
    let mut texts = messages.iter().map(String::as_str).chain([thrown]);
    if !texts.any(|text| SIGNS.iter().any(|sign| text.contains(sign))) {
        return String::new();
    }
    let free = platform::available_memory().map_or(String::new(), |bytes| format!(" ({} MiB are free)", bytes >> 20));
    format!("not enough memory{free}: use a smaller model, n_ctx or n_batch, or \"fit\": true: ")
}

/// All devices except those of RPC servers that do not respond.
fn available_devices() -> Vec<sys::ggml_backend_dev_t> {
    let unresponsive = rpc::unresponsive_devices();
    // SAFETY: indices are below the count, and devices live as long as the process.
    let all = unsafe { (0..sys::ggml_backend_dev_count()).map(|index| sys::ggml_backend_dev_get(index)) };
    all.filter(|device| !unresponsive.contains(device)).collect()
}

/// The default devices of a model if some RPC servers do not respond. `None`: all respond, so llama.cpp can choose.
///
/// The order is llama.cpp's: RPC servers, then GPUs, and integrated GPUs only if there is no other GPU.
pub(crate) fn default_devices() -> Option<Vec<sys::ggml_backend_dev_t>> {
    if rpc::unresponsive_devices().is_empty() {
        return None;
    }
    let available = available_devices();
    let of = |kind| {
        // SAFETY: devices live as long as the process.
        available.iter().copied().filter(move |device| unsafe { sys::ggml_backend_dev_type(*device) } == kind)
    };
    let (mut chosen, gpus): (Vec<_>, Vec<_>) = of(sys::GGML_BACKEND_DEVICE_TYPE_GPU).partition(|device| {
        // SAFETY: a device's registry has a static, NUL-terminated name.
        unsafe { guard::text(sys::ggml_backend_reg_name(sys::ggml_backend_dev_backend_reg(*device))) }
            .starts_with("RPC")
    });
    let integrated = of(sys::GGML_BACKEND_DEVICE_TYPE_IGPU).filter(|_| gpus.is_empty());
    chosen.extend(integrated.chain(gpus.iter().copied()));
    Some(chosen)
}

/// The device with this name, unless its RPC server does not respond.
pub(crate) fn device_by_name(name: &str) -> Option<sys::ggml_backend_dev_t> {
    let c_name = CString::new(name).ok()?;
    // SAFETY: a NUL-terminated name. NULL is returned if there is no such device.
    let device = unsafe { sys::ggml_backend_dev_by_name(c_name.as_ptr()) };
    (!device.is_null() && !rpc::unresponsive_devices().contains(&device)).then_some(device)
}

/// Whether there is a device other than CPUs: a GPU, or a device of an RPC server. (`llama_supports_gpu_offload` is always true if
/// RPC is compiled in.)
pub(crate) fn supports_offload() -> bool {
    backend::start();
    let kinds = [sys::GGML_BACKEND_DEVICE_TYPE_GPU, sys::GGML_BACKEND_DEVICE_TYPE_IGPU];
    // SAFETY: devices live as long as the process.
    available_devices().into_iter().any(|device| kinds.contains(&unsafe { sys::ggml_backend_dev_type(device) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lack_of_memory_is_named_with_what_is_free() {
        let message = "ggml_aligned_malloc: insufficient memory (attempted to allocate 228.31 MB)".to_owned();
        for text in [shortage(&[message], ""), shortage(&[], "std::bad_alloc")] {
            assert!(text.starts_with("not enough memory"), "{text}");
            assert_eq!(text.contains("MiB are free"), cfg!(target_os = "linux"), "{text}");
        }
        assert_eq!(shortage(&["key not found in model: general.architecture".to_owned()], ""), "");
    }
}
