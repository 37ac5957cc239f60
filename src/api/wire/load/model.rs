//! The keys of a load about the model: files, devices, LoRA adapters, metadata overrides, RPC servers.

use std::time::Duration;

use serde_json::Value;

use crate::api::wire::fields::{Fields, c_text_in, int_in, number_in, set, show, unexpected};
use crate::error::{Error, Result};
use crate::llama::{GgufSource, KvValue, LoraParams, ModelParams, SplitMode, WeightType, check_tensor_pattern};

/// `llama_max_devices()`.
const MAX_DEVICES: usize = 16;
/// How long an RPC server may be silent.
const RPC_TIMEOUT_MS: u64 = 120_000;
/// `llama_model_kv_override` has 128 bytes for the key and for a string value, including the NUL.
const MAX_OVERRIDE: usize = 127;

/// Reads the target model's parameters.
pub(super) fn target(fields: &mut Fields) -> Result<ModelParams> {
    let source = source(fields, "model")?;
    let mut model =
        ModelParams::new(source.ok_or_else(|| Error::invalid("model: expected the path of a GGUF file, got nothing"))?);
    set(&mut model.n_gpu_layers, gpu_layers(fields, "n_gpu_layers")?);
    set(&mut model.split_mode, fields.word("split_mode", &SplitMode::WORDS)?);
    set(&mut model.main_gpu, fields.int("main_gpu", -1..=MAX_DEVICES as i64 - 1)?);
    set(&mut model.tensor_split, tensor_split(fields)?);
    set(&mut model.n_cpu_moe, n_cpu_moe(fields, "n_cpu_moe")?);
    set(&mut model.override_tensor, override_tensor(fields, "override_tensor")?);
    model.use_mmap = use_mmap(fields, &model.source)?;
    model.repack = fields.flag("repack")?;
    set(&mut model.use_mlock, fields.flag("use_mlock")?);
    model.cpu_level = fields.c_text("cpu_level")?;
    set(&mut model.check_tensors, fields.flag("check_tensors")?);
    set(&mut model.vocab_only, fields.flag("vocab_only")?);
    set(&mut model.override_kv, override_kv(fields)?);
    set(&mut model.lora, lora(fields)?);
    use_devices(&mut model, fields.c_texts("devices")?);
    Ok(model)
}

/// Reads the draft model's parameters, if there is one. Absent keys have the target's value, except those about the target's weights.
pub(super) fn draft(fields: &mut Fields, target: &ModelParams) -> Result<Option<ModelParams>> {
    let source = source(fields, "model_draft")?;
    let n_gpu_layers = gpu_layers(fields, "n_gpu_layers_draft")?;
    let weights = fields.word("draft_weights", &WeightType::WORDS)?;
    let n_cpu_moe = n_cpu_moe(fields, "n_cpu_moe_draft")?.unwrap_or_default();
    let override_tensor = override_tensor(fields, "override_tensor_draft")?.unwrap_or_default();
    let (of_target, devices) = (fields.c_texts("devices")?, fields.c_texts("devices_draft")?);
    let Some(source) = source else { return Ok(None) };
    let default = ModelParams::new(source);
    let mut model = ModelParams {
        use_mmap: use_mmap(fields, &default.source)?,
        source: default.source,
        n_gpu_layers: default.n_gpu_layers,
        lora: default.lora,
        n_cpu_moe,
        override_tensor,
        ..target.clone()
    };
    if devices.is_none() {
        use_devices(&mut model, of_target);
    }
    set(&mut model.n_gpu_layers, n_gpu_layers);
    model.weights = weights.unwrap_or(WeightType::Measured);
    use_devices(&mut model, devices);
    Ok(Some(model))
}

/// Whether to map the file. The default is false for a part of an open file, because llama.cpp would map the rest, too.
fn use_mmap(fields: &mut Fields, source: &GgufSource) -> Result<bool> {
    let is_whole = match source {
        GgufSource::Path(_) => true,
        GgufSource::Descriptor { offset, length, .. } => *offset == 0 && length.is_none(),
        GgufSource::Memory { .. } => false,
    };
    Ok(fields.flag("use_mmap")?.unwrap_or(is_whole))
}

/// Reads the GGUF file of a key: a path, or an object for a part of an open file or of memory.
pub(super) fn source(fields: &mut Fields, key: &'static str) -> Result<Option<GgufSource>> {
    match fields.get(key) {
        Some(Value::Object(map)) => {
            let mut inner = Fields::nested(format!("{key}."), map);
            let source = source_in(&mut inner)?;
            fields.absorb(inner);
            source.map(Some).ok_or_else(|| no_source(key, &Value::Object(map.clone())))
        }
        _ => Ok(fields.c_text(key)?.map(GgufSource::from)),
    }
}

/// The displayed name of a value of `model` or `model_draft`, if the value is valid.
pub(super) fn name_of(value: &Value) -> Option<String> {
    match value {
        Value::Object(map) => Some(source_in(&mut Fields::new(map)).ok()??.to_string()),
        _ => value.as_str().map(str::to_owned),
    }
}

fn no_source(name: &str, value: &Value) -> Error {
    unexpected(name, "one of \"path\", \"fd\" (with \"offset\", \"length\") and \"address\" with \"length\"", value)
}

/// Reads `path`, or `fd` with optional `offset` and `length`, or `address` and `length`.
fn source_in(fields: &mut Fields) -> Result<Option<GgufSource>> {
    let path = fields.c_text("path")?;
    let fd = fields.int("fd", 0..=i64::from(i32::MAX))?;
    let (offset, length) = (bytes(fields, "offset", 0)?, bytes(fields, "length", 1)?);
    let address = bytes(fields, "address", 1)?;
    match (path, fd, address) {
        (Some(path), None, None) => Ok(Some(path.into())),
        (None, Some(fd), None) => Ok(Some(GgufSource::Descriptor { fd, offset: offset.unwrap_or(0), length })),
        (None, None, Some(address)) => {
            let name = fields.name("length");
            let length =
                length.ok_or_else(|| Error::invalid(format!("{name}: expected a number of bytes, got nothing")))?;
            // The kernel's file offsets are signed.
            if address.checked_add(length).is_none_or(|end| i64::try_from(end).is_err()) {
                return Err(Error::invalid(format!("{name}: {length} bytes from {address:#x} are beyond all memory")));
            }
            Ok(Some(GgufSource::Memory { address, length }))
        }
        _ => Ok(None),
    }
}

/// Reads a number of bytes or an address. A string of digits (hexadecimal after `0x`) is accepted, for hosts whose numbers are not exact
/// above 2^53.
fn bytes(fields: &mut Fields, key: &'static str, least: i64) -> Result<Option<u64>> {
    let name = fields.name(key);
    let Some(value) = fields.get(key) else { return Ok(None) };
    let read = value.as_str().map(|text| match text.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    });
    match read {
        Some(Some(number)) if number >= least => Ok(u64::try_from(number).ok()),
        Some(_) => Err(unexpected(&name, &format!("a whole number from {least} on, or its digits as a string"), value)),
        None => int_in(&name, value, least..=i64::MAX).map(Some),
    }
}

/// Reads a number of layers, or one of llama.cpp's words.
fn gpu_layers(fields: &mut Fields, key: &'static str) -> Result<Option<i32>> {
    fields.int_or_word(key, i64::from(i32::MIN)..=i64::from(i32::MAX), &[("auto", -1), ("all", -2)])
}

/// Reads a number of layers, or `all`.
fn n_cpu_moe(fields: &mut Fields, key: &'static str) -> Result<Option<u32>> {
    fields.int_or_word(key, 0..=i64::from(ModelParams::ALL_LAYERS), &[("all", ModelParams::ALL_LAYERS)])
}

/// Reads pairs of a pattern and a device: an object, or strings in llama.cpp's form `pattern=device`.
fn override_tensor(fields: &mut Fields, key: &'static str) -> Result<Option<Vec<(String, String)>>> {
    let pairs = match fields.get(key) {
        Some(Value::Object(map)) => {
            let pair = |(pattern, device): (&String, &Value)| Ok((pattern.clone(), c_text_in(key, device)?.to_owned()));
            Some(map.iter().map(pair).collect::<Result<Vec<_>>>()?)
        }
        _ => fields.c_texts(key)?.map(|items| items.iter().map(|item| tensor_item(key, item)).collect()).transpose()?,
    };
    for (pattern, _) in pairs.iter().flatten() {
        check_tensor_pattern(key, pattern)?;
    }
    Ok(pairs)
}

fn tensor_item(key: &str, item: &str) -> Result<(String, String)> {
    let (pattern, device) =
        item.rsplit_once('=').ok_or_else(|| unexpected(key, "\"pattern=device\"", &Value::from(item)))?;
    Ok((pattern.to_owned(), device.to_owned()))
}

/// Sets the devices. `none` disables all.
fn use_devices(model: &mut ModelParams, devices: Option<Vec<String>>) {
    match devices {
        Some(names) if matches!(names.as_slice(), [only] if only == "none") => {
            model.devices = Some(Vec::new());
            model.n_gpu_layers = 0;
        }
        Some(names) if names.is_empty() => {}
        Some(names) => model.devices = Some(names),
        None => {}
    }
}

fn tensor_split(fields: &mut Fields) -> Result<Option<Vec<f32>>> {
    let shares = fields.list("tensor_split", "an array of numbers", |name, value| number_in(name, value, 0.0..=1e9))?;
    match shares {
        Some(shares) if shares.len() > MAX_DEVICES => {
            Err(Error::invalid(format!("tensor_split: expected at most {MAX_DEVICES} shares, got {}", shares.len())))
        }
        // In llama.cpp, all zeros mean "by free memory".
        Some(shares) if shares.iter().all(|share| *share == 0.0) => Ok(Some(Vec::new())),
        shares => Ok(shares),
    }
}

/// Reads `rpc`: `host:port` of each RPC server.
pub(super) fn rpc(fields: &mut Fields) -> Result<Vec<String>> {
    let servers = fields.c_texts("rpc")?.unwrap_or_default();
    for server in &servers {
        let port = server.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
        if !matches!(port, Some(Ok(1..))) {
            return Err(Error::invalid(format!(
                "rpc: expected host:port, got {}",
                show(&Value::from(server.as_str()))
            )));
        }
    }
    Ok(servers)
}

/// Reads `rpc_timeout_ms`. 0 means no limit.
pub(super) fn rpc_timeout(fields: &mut Fields) -> Result<Option<Duration>> {
    let millis: u64 = fields.int("rpc_timeout_ms", 0..=i64::from(i32::MAX))?.unwrap_or(RPC_TIMEOUT_MS);
    Ok((millis > 0).then(|| Duration::from_millis(millis)))
}

/// Reads `lora`: paths, or objects with `path` and optionally `scale`.
fn lora(fields: &mut Fields) -> Result<Option<Vec<LoraParams>>> {
    let Some(value) = fields.get("lora") else { return Ok(None) };
    let items = value.as_array().ok_or_else(|| unexpected("lora", "an array of {\"path\", \"scale\"}", value))?;
    let mut adapters = Vec::new();
    for (i, item) in items.iter().enumerate() {
        let name = format!("lora[{i}]");
        let (source, scale) = match item {
            Value::String(_) => {
                (Some(c_text_in(&name, item)?).filter(|path| !path.is_empty()).map(GgufSource::from), None)
            }
            Value::Object(map) => {
                let mut inner = Fields::nested(format!("{name}."), map);
                let (source, scale) = (source_in(&mut inner)?, inner.number("scale", -1000.0..=1000.0)?);
                fields.absorb(inner);
                (source, scale)
            }
            _ => (None, None),
        };
        let source = source.ok_or_else(|| unexpected(&name, "{\"path\", \"scale\"} or a path", item))?;
        adapters.push(LoraParams { source, scale: scale.unwrap_or(1.0) });
    }
    Ok(Some(adapters))
}

/// Reads `override_kv`: an object, or one or several strings in llama.cpp's form `key=type:value`.
fn override_kv(fields: &mut Fields) -> Result<Option<Vec<(String, KvValue)>>> {
    let name = "override_kv";
    match fields.get(name) {
        None => Ok(None),
        Some(Value::Object(map)) => {
            let pairs = map.iter().map(|(key, value)| {
                let name = format!("{name}.{}", show(&Value::from(key.as_str())));
                Ok((override_key(&name, key)?, override_value(&name, value)?))
            });
            pairs.collect::<Result<_>>().map(Some)
        }
        Some(Value::String(_)) => {
            let items = fields.c_texts(name)?.unwrap_or_default();
            items.iter().map(|item| override_item(name, item)).collect::<Result<_>>().map(Some)
        }
        Some(_) => fields.list(name, "an object, or an array of \"key=type:value\"", |name, value| {
            override_item(name, c_text_in(name, value)?)
        }),
    }
}

fn override_key(name: &str, key: &str) -> Result<String> {
    if key.is_empty() || key.len() > MAX_OVERRIDE || key.contains('\0') {
        let expected = format!("a key of 1 to {MAX_OVERRIDE} bytes");
        return Err(unexpected(name, &expected, &Value::from(key)));
    }
    Ok(key.to_owned())
}

fn override_value(name: &str, value: &Value) -> Result<KvValue> {
    match value {
        Value::Bool(value) => Ok(KvValue::Bool(*value)),
        Value::Number(number) if number.is_f64() => {
            number.as_f64().map(KvValue::Float).ok_or_else(|| unexpected(name, "a number", value))
        }
        Value::Number(_) => int_in(name, value, i64::MIN..=i64::MAX).map(KvValue::Int),
        Value::String(_) => {
            let text = c_text_in(name, value)?;
            if text.len() > MAX_OVERRIDE {
                return Err(unexpected(name, &format!("a string of at most {MAX_OVERRIDE} bytes"), value));
            }
            Ok(KvValue::Str(text.to_owned()))
        }
        _ => Err(unexpected(name, "a number, a string, true or false", value)),
    }
}

/// Parses `key=type:value`, where the type is int, float, bool or str.
fn override_item(name: &str, item: &str) -> Result<(String, KvValue)> {
    let wrong = || unexpected(name, "\"key=type:value\" with the type int, float, bool or str", &Value::from(item));
    let (key, rest) = item.split_once('=').ok_or_else(wrong)?;
    let (kind, text) = rest.split_once(':').ok_or_else(wrong)?;
    let value = match kind {
        "int" => Value::from(text.parse::<i64>().map_err(|_| wrong())?),
        "float" => {
            text.parse::<f64>().ok().and_then(serde_json::Number::from_f64).map(Value::Number).ok_or_else(wrong)?
        }
        "bool" => Value::from(text.parse::<bool>().map_err(|_| wrong())?),
        "str" => Value::from(text),
        _ => return Err(wrong()),
    };
    Ok((override_key(name, key)?, override_value(name, &value)?))
}
