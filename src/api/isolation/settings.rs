//! `isolate` and its keys in a load, which the host's process reads; and the arguments of `foredraft-engine`.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::api::wire::fields::{Fields, unexpected};
use crate::api::wire::load;
use crate::error::{Error, Result};
use crate::llama::CpuSet;

/// The keys that belong to the host's process.
const KEYS: [&str; 7] =
    ["isolate", "isolate_path", "isolate_cpus", "isolate_nice", "memory_mb", "fallback", "notify_fd"];
/// The smallest context that a fallback goes down to.
const LEAST_N_CTX: u64 = 512;

/// How an engine is isolated.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IsolationSettings {
    /// The program; `None`: it is searched.
    pub(super) path: Option<PathBuf>,
    /// The host's working folder at the load, to which paths are relative when the program is started again. `None`: unknown.
    pub(super) folder: Option<PathBuf>,
    /// The limit of its memory, without mapped files, in MiB.
    pub(super) memory_mb: Option<u64>,
    /// The CPUs that it may use, as a range.
    pub(super) cpus: Option<String>,
    pub(super) nice: Option<i32>,
    /// After a death for lack of memory, it may be loaded with fewer layers on GPUs, or less context.
    pub(super) fallback: bool,
    /// The load's object without the keys above.
    pub(super) load: Map<String, Value>,
    /// Further warnings of the load.
    pub(super) warnings: Vec<String>,
}

impl IsolationSettings {
    /// Reads them from a load's argument, which is valid otherwise. `warnings`: further ones of the load.
    ///
    /// # Errors
    /// A key of isolation is invalid, or a model is not given by its path.
    pub fn read(command: &[u8], warnings: Vec<String>) -> Result<IsolationSettings> {
        let mut object = load::as_object(command).unwrap_or_default();
        let settings = {
            let mut fields = Fields::new(&object);
            let cpus = fields.c_text("isolate_cpus")?;
            if let Some(range) = &cpus
                && CpuSet::from_range(range).is_none()
            {
                return Err(unexpected("isolate_cpus", "a range such as \"0-3\"", &json!(range)));
            }
            IsolationSettings {
                path: fields.c_text("isolate_path")?.map(PathBuf::from),
                folder: std::env::current_dir().ok(),
                memory_mb: fields.int("memory_mb", 16..=1 << 30)?,
                cpus,
                nice: fields.int("isolate_nice", -20..=19)?,
                fallback: fields.flag("fallback")?.unwrap_or(false),
                load: Map::new(),
                warnings: Vec::new(),
            }
        };
        if let Some(key) =
            ["model", "model_draft", "mmproj"].into_iter().find(|key| object.get(*key).is_some_and(is_not_a_path))
        {
            return Err(Error::invalid(format!("{key}: an isolated engine needs a path")));
        }
        KEYS.iter().for_each(|key| _ = object.shift_remove(*key));
        Ok(IsolationSettings { load: object, warnings, ..settings })
    }

    /// The arguments of the program, before the host's process id.
    pub(super) fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut add = |name: &str, value: Option<String>| {
            arguments.extend(value.map(|value| format!("--{name}={value}")));
        };
        add("memory-mb", self.memory_mb.map(|mb| mb.to_string()));
        add("cpus", self.cpus.clone());
        add("nice", self.nice.map(|nice| nice.to_string()));
        arguments
    }

    /// Leaves out the RPC server that the error of a load names, if `fallback` allows it. Returns what was changed.
    pub(super) fn leave_out_server(&mut self, error: &str) -> Option<String> {
        let rpc = self.load.get("rpc").filter(|_| self.fallback && error.starts_with("rpc: "))?;
        let (lost, others): (Vec<String>, Vec<String>) =
            servers(rpc).into_iter().partition(|server| error.contains(&format!("\"{server}\"")));
        let lost = lost.into_iter().next()?;
        self.load.insert("rpc".into(), others.into());
        Some(format!("the RPC server {lost} is left out now"))
    }

    /// Asks for less memory: half of the layers on GPUs, then none, then half of the context. `used_layers`: those of the process that
    /// died, which can be fewer than requested. Returns what was changed; `None`: there is nothing left, or it is not allowed.
    pub(super) fn ask_for_less(&mut self, n_ctx: u64, used_layers: Option<i64>) -> Option<String> {
        let count = |value: Option<&Value>| value.and_then(Value::as_i64).unwrap_or(0);
        if !self.fallback {
            return None;
        }
        let asked = match self.load.get("n_gpu_layers") {
            Some(Value::String(_)) => -1,
            None | Some(Value::Null) if used_layers.is_some() => -1,
            given => count(given),
        };
        let layers = used_layers.filter(|used| asked < 0 || *used < asked).unwrap_or(asked);
        let (key, value) = match layers {
            // -1 is all of them, whose number is not known here.
            ..0 => ("n_gpu_layers", 16),
            1.. => ("n_gpu_layers", layers.unsigned_abs() / 2),
            0 if n_ctx / 2 >= LEAST_N_CTX => ("n_ctx", n_ctx / 2),
            0 => return None,
        };
        self.load.insert(key.into(), value.into());
        Some(format!("{key} is {value} now"))
    }
}

/// The servers of `rpc`, which is a list or a text with commas.
fn servers(rpc: &Value) -> Vec<String> {
    match rpc {
        Value::String(list) => list.split(',').map(|server| server.trim().to_owned()).collect(),
        _ => rpc.as_array().into_iter().flatten().filter_map(|server| server.as_str().map(str::to_owned)).collect(),
    }
}

fn is_not_a_path(model: &Value) -> bool {
    model.as_object().is_some_and(|source| !source.contains_key("path"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_isolation_stay_in_the_hosts_process() {
        let command = json!({"model": "a.gguf", "isolate": true, "memory_mb": 512, "isolate_cpus": "0-1", "isolate_nice": 5, "notify_fd": 9});
        let settings = IsolationSettings::read(command.to_string().as_bytes(), Vec::new()).expect("valid");
        assert_eq!(Value::from(settings.load.clone()), json!({"model": "a.gguf"}));
        assert_eq!(settings.arguments(), ["--memory-mb=512", "--cpus=0-1", "--nice=5"]);
    }

    #[test]
    fn invalid_keys_are_refused() {
        let memory = r#"{"address": 4096, "length": 10}"#;
        for key in [format!("\"model\": {memory}"), format!("\"model\": \"a.gguf\", \"mmproj\": {memory}")] {
            let command = format!("{{{key}, \"isolate\": true}}");
            assert!(IsolationSettings::read(command.as_bytes(), Vec::new()).is_err(), "{command}");
        }
        assert!(IsolationSettings::read(br#"{"isolate": true, "memory_mb": "much"}"#, Vec::new()).is_err());
    }

    #[test]
    fn fallback_leaves_out_the_server_that_an_error_names() {
        for rpc in [json!("a:1, b:2"), json!(["a:1", "b:2"])] {
            let mut settings = IsolationSettings { fallback: true, ..IsolationSettings::default() };
            settings.load.insert("rpc".into(), rpc);
            assert_eq!(settings.leave_out_server("model: cannot be read"), None);
            let change = settings.leave_out_server("rpc: the server at \"a:1\" does not respond");
            assert_eq!(change.as_deref(), Some("the RPC server a:1 is left out now"));
            assert_eq!(settings.load.get("rpc"), Some(&json!(["b:2"])));
        }
    }

    #[test]
    fn fallback_asks_for_fewer_layers_then_for_less_context() {
        let mut settings = IsolationSettings::default();
        assert_eq!(settings.ask_for_less(4096, None), None);
        settings.fallback = true;
        settings.load.insert("n_gpu_layers".into(), 3.into());
        let mut changes = Vec::new();
        let mut n_ctx = 2048;
        while let Some(change) = settings.ask_for_less(n_ctx, None) {
            n_ctx = settings.load.get("n_ctx").and_then(Value::as_u64).unwrap_or(n_ctx);
            changes.push(change);
        }
        assert_eq!(
            changes,
            ["n_gpu_layers is 1 now", "n_gpu_layers is 0 now", "n_ctx is 1024 now", "n_ctx is 512 now"]
        );
    }

    #[test]
    fn fallback_begins_with_the_layers_that_were_used() {
        for (asked, used, expected) in [
            (Value::Null, Some(24), "n_gpu_layers is 12 now"),
            ("all".into(), None, "n_gpu_layers is 16 now"),
            ((-1).into(), Some(24), "n_gpu_layers is 12 now"),
            (99.into(), Some(24), "n_gpu_layers is 12 now"),
            (8.into(), Some(24), "n_gpu_layers is 4 now"),
            ((-1).into(), Some(0), "n_ctx is 1024 now"),
            ((-1).into(), None, "n_gpu_layers is 16 now"),
        ] {
            let mut settings = IsolationSettings { fallback: true, ..IsolationSettings::default() };
            settings.load.insert("n_gpu_layers".into(), asked);
            assert_eq!(settings.ask_for_less(2048, used).as_deref(), Some(expected), "{used:?}");
        }
    }
}
