//! The `speculative` value of `init` (defaults) and of a request, in the object's form and in llama-server's
//! flat form (`"speculative.n_max"`).

use serde_json::{Map, Value, json};

use super::fields::{Fields, show, unavailable, unexpected, word_in};
use super::suggest;
use crate::error::{Error, Result};
use crate::speculative::{Adaptive, MAX_DRAFT, Settings, Source, Verify};

/// Which functions a request came through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// `get_completion`, `async_completion_init`: no speculation unless the request asks for it.
    Completion,
    /// `speculative_*`: speculation unless the request turns it off.
    Speculative,
}

/// What `speculative` says, key by key: the defaults that `init` sets and a request changes.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// false when the whole value is `false`.
    enabled: bool,
    /// Whether `type` holds `auto`: then `sources` is what auto stands for.
    auto: bool,
    /// `type`; empty is `none`.
    sources: Vec<Source>,
    /// 0 is as `none`.
    n_max: usize,
    n_min: usize,
    p_min: f32,
    verify: Verify,
    adaptive: Adaptive,
}

impl Default for Options {
    /// The engine's own defaults, with the type `auto`.
    fn default() -> Self {
        let Settings { sources, n_max, n_min, p_min, verify, adaptive } = Settings::default();
        Options { enabled: true, auto: true, sources, n_max, n_min, p_min, verify, adaptive }
    }
}

/// What a request gets.
#[derive(Debug, Clone, PartialEq)]
pub struct Speculation {
    /// How to speculate; `None`: not at all.
    pub settings: Option<Settings>,
    /// Why there is none, when the answer has to say so.
    pub disabled: Option<&'static str>,
    /// Whether the answer has a `speculative` object.
    pub report: bool,
    /// Whether the drafters were chosen by `auto`, so that a missing draft model is no surprise.
    pub auto: bool,
    /// What was asked for; `None`: that there be none.
    options: Option<Options>,
}

/// Names of types that work, and what they stand for; `None` is `none`.
const TYPES: [(&str, Option<Source>); 4] = [
    ("auto", Some(Source::Draft)),
    ("draft", Some(Source::Draft)),
    ("draft-simple", Some(Source::Draft)), // llama.cpp's name
    ("none", None),
];
/// Names that the contract or llama.cpp has and this version has not.
const TYPES_TO_COME: [&str; 11] = [
    "ngram-cache",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "suffix",
    "mtp",
    "draft-mtp",
    "draft-eagle3",
    "draft-dflash",
    "draft-dspark",
];
const VERIFY: [(&str, Option<Verify>); 4] =
    [("coupled", Some(Verify::Coupled)), ("match", Some(Verify::Match)), ("rejection", None), ("block", None)];

impl Options {
    /// Reads `init`'s `speculative`.
    ///
    /// # Errors
    /// A field of the wrong type, out of range, or not available.
    pub fn read_defaults(fields: &mut Fields) -> Result<Options> {
        Ok(Options::default().changed_by(fields)?.0)
    }

    /// These options with what the document says about `speculative`, and whether it says anything that turns
    /// speculation on.
    fn changed_by(&self, fields: &mut Fields) -> Result<(Options, bool)> {
        let flat = fields.get_prefixed("speculative.");
        let value = fields.get("speculative");
        let mut merged = match value {
            None | Some(Value::Bool(_)) => Map::new(),
            Some(Value::Object(map)) => map.clone(),
            Some(other) => return Err(unexpected("speculative", "true, false or an object", other)),
        };
        let mut options = self.clone();
        let mentioned = value.is_some() || !flat.is_empty();
        if mentioned {
            options.enabled = value != Some(&Value::Bool(false));
        }
        for (key, value) in flat {
            if let Some(other) = merged.insert(key.to_owned(), value.clone()).filter(|other| other != value) {
                let (value, other) = (show(value), show(&other));
                return Err(Error::invalid(format!(
                    "speculative.{key}: given as {value}, and as {other} in \"speculative\""
                )));
            }
        }
        let mut inner = Fields::nested("speculative.", &merged);
        options.overlay(&mut inner)?;
        fields.absorb(inner);
        let asks = mentioned && options.enabled;
        Ok((options, asks))
    }

    fn overlay(&mut self, fields: &mut Fields) -> Result<()> {
        if let Some(value) = fields.get("type") {
            (self.sources, self.auto) = read_types(value)?;
        }
        if let Some(n_max) = fields.int("n_max", 0..=MAX_DRAFT as i64)? {
            self.n_max = n_max;
        }
        // A default above the request's own n_max gives way; a number in the request does not.
        self.n_min = match fields.int("n_min", 0..=self.n_max as i64)? {
            Some(n_min) => n_min,
            None => self.n_min.min(self.n_max),
        };
        if let Some(p_min) = fields.number("p_min", 0.0..=1.0)? {
            self.p_min = p_min;
        }
        if let Some(value) = fields.get("verify") {
            let verify = word_in("speculative.verify", value, &VERIFY)?;
            self.verify = verify.ok_or_else(|| not_yet("speculative.verify", value))?;
        }
        match fields.get("adaptive") {
            None => {}
            Some(Value::Bool(true)) => self.adaptive = Adaptive::Auto,
            Some(Value::Bool(false)) => self.adaptive = Adaptive::Fixed,
            Some(Value::String(word)) if word == "heuristic" => self.adaptive = Adaptive::Heuristic,
            Some(other) => return Err(unexpected("speculative.adaptive", "true, false or \"heuristic\"", other)),
        }
        // Where a tree would branch: means nothing for one branch, but llama.cpp's users set it.
        fields.number("p_split", 0.0..=1.0)?;
        fields.unavailable("n_branches", |value| matches!(value.as_f64(), Some(0.0 | 1.0)))?;
        fields.unavailable("lookup_cache_static", |value| value == "")?;
        fields.unavailable("lookup_cache_dynamic", |value| value == "")?;
        fields.unavailable("model", |value| value == "target")?;
        fields.unavailable("compare", |value| value == false)
    }

    /// Why nothing is drafted with these options, if so.
    fn off(&self) -> Option<&'static str> {
        match self {
            Options { enabled: false, .. } => Some("speculative is false"),
            Options { sources, .. } if sources.is_empty() => Some("speculative.type is none"),
            Options { n_max: 0, .. } => Some("speculative.n_max is 0"),
            _ => None,
        }
    }

    fn to_json(&self) -> Value {
        let kind = match self.sources.as_slice() {
            _ if self.auto => json!("auto"),
            [] => json!("none"),
            [source] => json!(source.as_str()),
            sources => sources.iter().map(|source| source.as_str()).collect(),
        };
        let verify = VERIFY.iter().find(|(_, verify)| *verify == Some(self.verify)).map(|(name, _)| *name);
        let adaptive = match self.adaptive {
            Adaptive::Auto => json!(true),
            Adaptive::Heuristic => json!("heuristic"),
            Adaptive::Fixed => json!(false),
        };
        json!({
            "type": kind,
            "n_max": self.n_max,
            "n_min": self.n_min,
            "p_min": super::fields::shortest(self.p_min),
            "verify": verify,
            "adaptive": adaptive,
        })
    }
}

impl Speculation {
    /// Reads a request's `speculative`.
    ///
    /// # Errors
    /// A field of the wrong type, out of range, or not available.
    pub fn read(fields: &mut Fields, family: Family, defaults: &Options) -> Result<Speculation> {
        let (options, asks) = defaults.changed_by(fields)?;
        let report = asks || family == Family::Speculative;
        let disabled = if report { options.off() } else { None };
        let settings = (report && disabled.is_none()).then(|| Settings {
            sources: options.sources.clone(),
            n_max: options.n_max,
            n_min: options.n_min,
            p_min: options.p_min,
            verify: options.verify,
            adaptive: options.adaptive,
        });
        let options = Some(options).filter(|options| report && options.enabled);
        let auto = options.as_ref().is_some_and(|options| options.auto);
        Ok(Speculation { settings, disabled, report, auto, options })
    }

    /// As a request's `speculative`: `false`, or the object with every key.
    pub fn to_json(&self) -> Value {
        self.options.as_ref().map_or(Value::Bool(false), Options::to_json)
    }
}

/// `type`: the drafters without repetitions, and whether `auto` is among them.
fn read_types(value: &Value) -> Result<(Vec<Source>, bool)> {
    let name = "speculative.type";
    let items = match value {
        Value::String(_) => std::slice::from_ref(value),
        Value::Array(items) if !items.is_empty() => items,
        _ => return Err(unexpected(name, "a name or an array of names", value)),
    };
    let mut sources = Vec::new();
    let mut auto = false;
    for item in items {
        let word = item.as_str().ok_or_else(|| unexpected(name, "a name or an array of names", item))?;
        let Some((_, source)) = TYPES.iter().find(|(known, _)| *known == word) else {
            return Err(unknown_type(name, word, item));
        };
        auto |= word == "auto";
        sources.extend(source.filter(|source| !sources.contains(source)));
    }
    Ok((sources, auto))
}

fn unknown_type(name: &str, word: &str, item: &Value) -> Error {
    if TYPES_TO_COME.contains(&word) {
        return not_yet(name, item);
    }
    let known: Vec<String> = TYPES.iter().map(|(known, _)| format!("{known:?}")).collect();
    let hint = suggest::did_you_mean(word, TYPES.iter().map(|(known, _)| *known).chain(TYPES_TO_COME));
    let expected = format!("one of {}", known.join(", "));
    Error::invalid(format!("{}{hint}", unexpected(name, &expected, item).message()))
}

fn not_yet(name: &str, value: &Value) -> Error {
    unavailable(&format!("{name} {}", show(value)))
}

#[cfg(test)]
#[path = "speculative_tests.rs"]
mod tests;
