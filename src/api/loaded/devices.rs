//! The devices, the modules of GPUs and the processor, which a host can ask for before a load.

use serde_json::{Value, json};

use crate::error::Result;
use crate::llama::{self, BackendModule, Device};

/// The answer of `foredraft_devices`. Starts llama.cpp, which loads the modules.
///
/// # Errors
/// The processor lacks what llama.cpp is compiled for, or the environment names a level that it does not have.
pub fn devices() -> Result<Value> {
    llama::choose_default_level()?;
    let devices = llama::devices();
    let own_memory = devices.iter().find(|device| device.kind == "cpu");
    Ok(json!({
        "success": true,
        "devices": devices.iter().map(device_fields).collect::<Vec<_>>(),
        "modules": llama::modules().iter().map(module).collect::<Vec<_>>(),
        "cpu": {
            "level": llama::level().map(llama::CpuLevel::as_str),
            "levels": level_names(),
            "cores": llama::usable_cores(),
            "memory_total": own_memory.map(|own| own.memory_total),
            "memory_free": llama::available_memory().or_else(|| own_memory.map(|own| own.memory_free as u64)),
        },
    }))
}

/// A device and its memory in bytes.
pub(super) fn device_fields(device: &Device) -> Value {
    json!({
        "name": device.name,
        "description": device.description,
        "type": device.kind,
        "memory_free": device.memory_free,
        "memory_total": device.memory_total,
    })
}

/// The names of the processor's levels of instructions.
pub(super) fn level_names() -> Vec<&'static str> {
    llama::levels().iter().map(|level| level.as_str()).collect()
}

fn module(module: &BackendModule) -> Value {
    let tried = module.use_or_error.as_ref();
    json!({
        "path": module.path.to_string_lossy(),
        "found": module.path.is_file(),
        "loaded": tried.is_some_and(|result| result.is_ok()),
        "error": tried.and_then(|result| result.as_ref().err()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_known_before_a_load() {
        let answer = devices().unwrap();
        let of_type = |kind: &str| answer["devices"].as_array().unwrap().iter().filter(|of| of["type"] == kind).count();
        assert_eq!(of_type("cpu"), 1, "{answer}");
        let cpu = &answer["cpu"];
        assert!(cpu["levels"].as_array().unwrap().contains(&cpu["level"]), "{cpu}");
        assert!(cpu["cores"].as_u64() > Some(0) && cpu["memory_free"].as_u64() > Some(0), "{cpu}");
        assert!(cpu["memory_free"].as_u64() <= cpu["memory_total"].as_u64(), "{cpu}");
    }

    #[test]
    fn a_module_says_whether_it_is_used() {
        let path = std::env::current_exe().unwrap();
        let of = |use_or_error| module(&BackendModule { path: path.clone(), use_or_error });
        let fields = |of: Value| (of["found"].clone(), of["loaded"].clone(), of["error"].clone());
        assert_eq!(fields(of(Some(Ok(())))), (json!(true), json!(true), json!(null)));
        assert_eq!(fields(of(Some(Err("it is older".into())))), (json!(true), json!(false), json!("it is older")));
        let missing = module(&BackendModule { path: "/missing.so".into(), use_or_error: None });
        assert_eq!(fields(missing), (json!(false), json!(false), json!(null)));
    }
}
