//! The field `speculative` of a load (defaults) and of a request, as an object or in llama-server's flat form
//! (`"speculative.n_max"`).

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::api::wire::fields::{Fields, did_you_mean, set, shortest, show, unexpected, word_in};
use crate::error::{Error, Result};
use crate::speculative::{
    Adaptive, DrafterKind, HEURISTIC_MAX, MAX_BRANCHES, MAX_DRAFT, Settings, SuffixParams, Verify,
};

/// The options of `speculative`. A load sets defaults, and a request changes them.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeculativeOptions {
    /// False if the value is `false`.
    enabled: bool,
    /// Speculation is off if there are no drafters, or if `n_max` is 0.
    settings: Settings,
    /// N-gram cache files, static and dynamic, that replace the engine's caches.
    caches: (Option<PathBuf>, Option<PathBuf>),
    /// Draft-only mode: the draft model generates.
    draft_only: bool,
    /// The completion is generated again without speculation, and compared.
    compare: bool,
    /// `n_max` was given. (Its default depends on `adaptive`.)
    has_n_max: bool,
}

impl Default for SpeculativeOptions {
    /// The engine's defaults, with the type `auto`.
    fn default() -> Self {
        SpeculativeOptions {
            enabled: true,
            settings: Settings::default(),
            caches: (None, None),
            draft_only: false,
            compare: false,
            has_n_max: false,
        }
    }
}

/// The speculation of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeculationRequest {
    /// The settings. `None`: no speculation.
    pub settings: Option<Settings>,
    /// Why speculation is off, if the answer has to say so.
    pub disabled: Option<&'static str>,
    /// The answer has a `speculative` object.
    pub report: bool,
    /// Draft-only mode: the draft model generates, without speculation.
    pub draft_only: bool,
    /// The answer has the first difference to the completion without speculation.
    pub compare: bool,
    /// The requested options. `None`: speculation was not requested.
    options: Option<SpeculativeOptions>,
}

/// The names of drafters, including llama.cpp's names. `auto` and `none` are handled separately.
const TYPES: [(&str, DrafterKind); 17] = [
    ("draft", DrafterKind::Draft),
    ("draft-simple", DrafterKind::Draft),
    // `model_draft` is what its file says.
    ("eagle3", DrafterKind::Draft),
    ("draft-eagle3", DrafterKind::Draft),
    ("dflash", DrafterKind::Draft),
    ("draft-dflash", DrafterKind::Draft),
    ("dspark", DrafterKind::Draft),
    ("draft-dspark", DrafterKind::Draft),
    ("mtp", DrafterKind::Mtp),
    ("draft-mtp", DrafterKind::Mtp),
    ("ngram-cache", DrafterKind::NgramCache),
    ("suffix", DrafterKind::Suffix),
    ("ngram-simple", DrafterKind::Suffix),
    ("ngram-map-k", DrafterKind::Suffix),
    ("ngram-map-k4v", DrafterKind::Suffix),
    ("ngram-mod", DrafterKind::Suffix),
    ("grammar", DrafterKind::Grammar),
];
const AUTO: &str = "auto";
const NONE: &str = "none";

impl SpeculativeOptions {
    /// Reads a load's `speculative`.
    ///
    /// # Errors
    /// A field has the wrong type, is out of range, or is not available.
    pub fn read_defaults(fields: &mut Fields) -> Result<SpeculativeOptions> {
        Ok(SpeculativeOptions::default().changed_by(fields)?.0)
    }

    /// Applies the document's `speculative` to these options. Also returns whether the document enables speculation.
    fn changed_by(&self, fields: &mut Fields) -> Result<(SpeculativeOptions, bool)> {
        let flat = fields.get_prefixed("speculative.");
        let value = fields.get("speculative");
        let mut merged = match value {
            None | Some(Value::Bool(_)) => Map::new(),
            Some(Value::Object(map)) => map.clone(),
            Some(other) => return Err(unexpected("speculative", "true, false or an object", other)),
        };
        let mut options = self.clone();
        let is_given = value.is_some() || !flat.is_empty();
        if is_given {
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
        let enables = is_given && options.enabled;
        Ok((options, enables))
    }

    fn overlay(&mut self, fields: &mut Fields) -> Result<()> {
        let settings = &mut self.settings;
        if let Some(value) = fields.get("type") {
            settings.sources = read_types(value, fields)?;
        }
        if let Some(n_max) = fields.int("n_max", 0..=MAX_DRAFT as i64)? {
            (settings.n_max, settings.n_max_text) = (n_max, n_max);
            self.has_n_max = true;
        }
        set(&mut settings.n_draft, fields.int("n_draft", 1..=MAX_DRAFT as i64)?);
        match fields.get("adaptive") {
            None => {}
            Some(Value::Bool(true)) => settings.adaptive = Adaptive::Auto,
            Some(Value::Bool(false)) => settings.adaptive = Adaptive::Fixed,
            Some(Value::String(word)) if word == "heuristic" => settings.adaptive = Adaptive::Heuristic,
            Some(other) => return Err(unexpected("speculative.adaptive", "true, false or \"heuristic\"", other)),
        }
        if !self.has_n_max {
            // The default of `n_max`: the limit of `speculative.cpp`'s rule, or `n_draft`.
            settings.n_max = if settings.adaptive == Adaptive::Heuristic { HEURISTIC_MAX } else { settings.n_draft };
        }
        set(&mut settings.n_max_text, fields.int("n_max_text", 0..=MAX_DRAFT as i64)?);
        // A default n_min above n_max is reduced; a given one is an error.
        settings.n_min = match fields.int("n_min", 0..=settings.n_max as i64)? {
            Some(n_min) => n_min,
            None => settings.n_min.min(settings.n_max),
        };
        if let Some(p_min) = fields.number("p_min", 0.0..=1.0)? {
            settings.p_min = p_min;
        }
        if let Some(value) = fields.get("verify") {
            settings.verify = word_in("speculative.verify", value, &Verify::WORDS)?;
        }
        read_suffix(fields, &mut settings.suffix)?;
        // The parameters of the replaced drafters.
        for (key, _) in fields.get_prefixed("ngram_") {
            fields.warn(format!("{}ngram_{key}: ignored, suffix has no such parameter", fields.name("")));
        }
        set(&mut settings.p_split, fields.number("p_split", 0.0..=1.0)?);
        // As in llama.cpp, 0 means no additional branches.
        set(&mut settings.n_branches, fields.int("n_branches", 0..=MAX_BRANCHES as i64)?.map(|n: usize| n.max(1)));
        let file = |path: String| Some(path).filter(|path| !path.is_empty()).map(PathBuf::from);
        set(&mut self.caches.0, fields.c_text("lookup_cache_static")?.map(file));
        set(&mut self.caches.1, fields.c_text("lookup_cache_dynamic")?.map(file));
        set(&mut self.draft_only, fields.word("model", &[("target", false), ("draft", true)])?);
        set(&mut self.compare, fields.flag("compare")?);
        Ok(())
    }

    /// Whether the drafter is among the defaults.
    pub fn includes(&self, drafter: DrafterKind) -> bool {
        self.settings.sources.contains(&drafter)
    }

    /// Why these options turn speculation off, if they do.
    fn off_reason(&self) -> Option<&'static str> {
        match self {
            SpeculativeOptions { enabled: false, .. } => Some("speculative is false"),
            SpeculativeOptions { draft_only: true, .. } => {
                Some("speculative.model is draft: the draft model generates alone")
            }
            SpeculativeOptions { settings, .. } if settings.sources.is_empty() => Some("speculative.type is none"),
            SpeculativeOptions { settings, .. } if settings.n_max == 0 => Some("speculative.n_max is 0"),
            _ => None,
        }
    }

    /// `type`, in the form of a request.
    fn kind(&self) -> Value {
        match self.settings.sources.as_slice() {
            sources if *sources == Settings::default().sources => json!(AUTO),
            [] => json!(NONE),
            [source] => json!(source.as_str()),
            sources => sources.iter().map(|source| source.as_str()).collect(),
        }
    }

    fn to_json(&self) -> Value {
        let Settings {
            n_draft, n_max, n_max_text, n_min, p_min, n_branches, p_split, verify, adaptive, suffix, ..
        } = &self.settings;
        let adaptive = match adaptive {
            Adaptive::Auto => json!(true),
            Adaptive::Heuristic => json!("heuristic"),
            Adaptive::Fixed => json!(false),
        };
        json!({
            "type": self.kind(),
            "n_draft": n_draft,
            "n_max": n_max,
            "n_max_text": n_max_text,
            "n_min": n_min,
            "p_min": shortest(*p_min),
            "n_branches": n_branches,
            "p_split": shortest(*p_split),
            "verify": verify.as_str(),
            "adaptive": adaptive,
            "suffix_depth": suffix.max_depth,
            "suffix_factor": shortest(suffix.factor),
            "suffix_p_min": shortest(suffix.min_prob),
            "lookup_cache_static": self.caches.0,
            "lookup_cache_dynamic": self.caches.1,
            "model": if self.draft_only { "draft" } else { "target" },
            "compare": self.compare,
        })
    }
}

/// Reads the parameters of `suffix`.
fn read_suffix(fields: &mut Fields, suffix: &mut SuffixParams) -> Result<()> {
    set(&mut suffix.max_depth, fields.int("suffix_depth", 1..=16)?);
    set(&mut suffix.factor, fields.number("suffix_factor", 0.0..=64.0)?);
    set(&mut suffix.min_prob, fields.number("suffix_p_min", 0.0..=1.0)?);
    Ok(())
}

impl SpeculationRequest {
    /// Reads a request's `speculative`. `if_asked`: without it, the request does not speculate, and its answer does not mention
    /// speculation.
    ///
    /// # Errors
    /// A field has the wrong type, is out of range, or is not available.
    pub fn read(fields: &mut Fields, if_asked: bool, defaults: &SpeculativeOptions) -> Result<SpeculationRequest> {
        let (options, enables) = defaults.changed_by(fields)?;
        let report = enables || !if_asked;
        let disabled = if report { options.off_reason() } else { None };
        let settings = (report && disabled.is_none()).then(|| options.settings.clone());
        // The options are reported in `generation_settings`, where `n_max` is a given value.
        let options =
            Some(SpeculativeOptions { has_n_max: true, ..options }).filter(|options| report && options.enabled);
        let is_set = |option: fn(&SpeculativeOptions) -> bool| options.as_ref().is_some_and(option);
        let (draft_only, compare) = (is_set(|options| options.draft_only), is_set(|options| options.compare));
        Ok(SpeculationRequest { settings, disabled, report, draft_only, compare, options })
    }

    /// N-gram cache files, static and dynamic, that replace the engine's caches.
    pub fn caches(&self) -> (Option<PathBuf>, Option<PathBuf>) {
        self.options.as_ref().map(|options| options.caches.clone()).unwrap_or_default()
    }

    /// Turns speculation off.
    pub fn disable(&mut self, reason: &'static str) {
        if self.settings.take().is_some() {
            self.disabled = Some(reason);
        }
    }

    /// The requested `type`, or `none`.
    pub fn kind(&self) -> Value {
        self.options.as_ref().map_or(json!(NONE), SpeculativeOptions::kind)
    }

    /// The value of `speculative`: `false`, or an object with all keys.
    pub fn to_json(&self) -> Value {
        self.options.as_ref().map_or(Value::Bool(false), SpeculativeOptions::to_json)
    }
}

/// Reads `type`: the drafters, without duplicates.
fn read_types(value: &Value, fields: &mut Fields) -> Result<Vec<DrafterKind>> {
    let name = "speculative.type";
    let items = match value {
        Value::String(_) => std::slice::from_ref(value),
        Value::Array(items) if !items.is_empty() => items,
        _ => return Err(unexpected(name, "a name or an array of names", value)),
    };
    let mut sources = Vec::new();
    for item in items {
        let word = item.as_str().ok_or_else(|| unexpected(name, "a name or an array of names", item))?;
        let named = match word {
            NONE => Vec::new(),
            AUTO => Settings::default().sources,
            _ => match TYPES.iter().find(|(known, _)| *known == word) {
                Some((_, source)) => {
                    if *source == DrafterKind::Suffix && word != source.as_str() {
                        fields.warn(format!("{name}: {word} is a name of suffix"));
                    }
                    vec![*source]
                }
                None => return Err(unknown_type(name, word, item)),
            },
        };
        for source in named {
            if !sources.contains(&source) {
                sources.push(source);
            }
        }
    }
    Ok(sources)
}

fn unknown_type(name: &str, word: &str, item: &Value) -> Error {
    let names = || TYPES.iter().map(|(known, _)| *known).chain([AUTO, NONE]);
    let known: Vec<String> = names().map(|known| format!("{known:?}")).collect();
    let hint = did_you_mean(word, names());
    let expected = format!("one of {}", known.join(", "));
    Error::invalid(format!("{}{hint}", unexpected(name, &expected, item).message()))
}

#[cfg(test)]
mod tests;
