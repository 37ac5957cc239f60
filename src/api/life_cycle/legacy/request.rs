//! A request of the old server's functions, changed to a request of the engine.

use serde_json::{Map, Value};

use super::values::clamp_old_values;
use crate::api::wire::fields::Fields;
use crate::api::wire::request::{PROMPT_KEYS, RequestDefaults, Translation};
use crate::error::Result;
use crate::llama::log::{self, Level};

/// The two groups of functions for completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `get_completion`, `async_completion_*`: no speculation unless the request enables it.
    Completion,
    /// `speculative_completion*`: speculation unless the request disables it.
    Speculative,
}

impl Endpoint {
    /// The name of the function that waits for the final response.
    pub(super) fn waiting_function(self) -> &'static str {
        match self {
            Endpoint::Completion => "get_completion",
            Endpoint::Speculative => "speculative_completion",
        }
    }
}

/// Changes a request to what it means for the engine. `is_awaited`: its caller waits for the final response. `n_vocab` returns the size of
/// the vocabulary.
///
/// # Errors
/// Those of `n_vocab`.
pub fn translate(
    request: &mut Map<String, Value>,
    endpoint: Endpoint,
    is_awaited: bool,
    defaults: &RequestDefaults,
    n_vocab: impl FnOnce() -> Result<usize>,
) -> Result<Translation> {
    let n_vocab = if request.contains_key("logit_bias") { n_vocab()? } else { 0 };
    let mut warnings = clamp_old_values(request, n_vocab);
    if endpoint == Endpoint::Completion && is_awaited {
        add_beams(request, defaults.n_beams);
    }
    if request.get("__debug") == Some(&Value::Bool(true)) {
        log::always(Level::Info, &format!("request: {}", Value::Object(request.clone())));
    }
    set_own_defaults(request, defaults, &mut warnings);
    Ok(Translation {
        warnings,
        speculates_if_asked: endpoint == Endpoint::Completion,
        is_prepared_first: true,
        // The old server cut a stop word that had begun only in the answer of `get_completion`.
        cuts_begun_stop: is_awaited,
        bans_as_null: true,
        is_logged: true,
        shows_prompt: true,
        ..Translation::default()
    })
}

/// The warnings about `init`'s values that requests do not use.
pub(super) fn warn_about_defaults(defaults: &RequestDefaults) -> Vec<String> {
    let keys = overwritten(defaults).into_iter().filter_map(|(key, value)| value.map(|_| key));
    let warning =
        |key| format!("{key}: not used by requests of the old names, which set it themselves, as in the old server");
    keys.map(warning).collect()
}

/// The values of a load that each request of the old server overwrote, if they are not the old server's own.
fn overwritten(defaults: &RequestDefaults) -> [(&'static str, Option<i64>); 2] {
    let number = |n_keep: Option<usize>| n_keep.map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX));
    let n_keep = Some(defaults.n_keep).filter(|n_keep| *n_keep != RequestDefaults::default().n_keep);
    [("seed", defaults.seed.map(i64::from)), ("n_keep", n_keep.map(number))]
}

/// Sets the fields that the old server did not take from `init`.
fn set_own_defaults(request: &mut Map<String, Value>, defaults: &RequestDefaults, warnings: &mut Vec<String>) {
    let is_given = |request: &Map<String, Value>, key: &str| Fields::new(request).is_given(key);
    for ((key, loaded), own) in overwritten(defaults).into_iter().zip([-1, 0]) {
        if is_given(request, key) {
            continue;
        }
        if let Some(value) = loaded {
            let used = "is not used, as in the old server; set it in each request";
            warnings.push(format!("{key}: init's value {value} {used}"));
        }
        request.insert(key.to_owned(), own.into());
    }
    if !PROMPT_KEYS.iter().any(|key| is_given(request, key)) {
        request.insert("prompt".to_owned(), "".into());
    }
}

/// Adds `init`'s `n_beams` to a request that can have beams.
fn add_beams(request: &mut Map<String, Value>, n_beams: usize) {
    let others = ["n_beams", "grammar", "json_schema", "logits_callback"];
    if n_beams > 1 && !others.iter().any(|key| request.contains_key(*key)) {
        request.insert("n_beams".to_owned(), n_beams.into());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::wire::request::{CompletionRequest, RequestArguments};

    fn translated(request: Value, endpoint: Endpoint, defaults: &RequestDefaults) -> CompletionRequest {
        let mut object = request.as_object().expect("an object").clone();
        let translation =
            translate(&mut object, endpoint, true, defaults, || Ok(1000)).expect("the vocabulary is known");
        let arguments = RequestArguments { translation, ..RequestArguments::default() };
        CompletionRequest::from_object(&object, defaults, arguments)
            .unwrap_or_else(|error| panic!("{request}: {error}"))
    }

    #[test]
    fn each_request_overwrites_seed_and_n_keep_of_the_load() {
        let warnings = |loaded: &RequestDefaults, request: Value| {
            let request = translated(request, Endpoint::Completion, loaded);
            (request.sampling.seed, request.options.n_keep, request.warnings)
        };
        let loaded = RequestDefaults { seed: Some(7), n_keep: None, ..RequestDefaults::default() };
        assert_eq!(warnings(&loaded, json!({"seed": 0, "n_keep": 3})), (0, Some(3), Vec::new()));
        for endpoint in [Endpoint::Completion, Endpoint::Speculative] {
            let seeds = (0..100).map(|_| translated(json!({"seed": null}), endpoint, &loaded).sampling.seed);
            // Drawn seeds all differ, except with a probability of 1 in 860,000.
            assert!(seeds.collect::<std::collections::HashSet<u32>>().len() >= 99);
        }
        let (_, n_keep, given) = warnings(&loaded, json!({}));
        assert_eq!(n_keep, Some(0));
        assert_eq!(
            given,
            [
                "seed: init's value 7 is not used, as in the old server; set it in each request",
                "n_keep: init's value -1 is not used, as in the old server; set it in each request"
            ]
        );
        assert_eq!(warnings(&RequestDefaults::default(), json!({})).2, Vec::<String>::new());
        let warned: Vec<String> = warn_about_defaults(&loaded);
        assert!(
            warned.len() == 2 && warned.iter().all(|warning| warning.contains("not used by requests of the old names"))
        );
        assert_eq!(warn_about_defaults(&RequestDefaults::default()), Vec::<String>::new());
    }

    #[test]
    fn beams_of_the_load_count_in_get_completion_alone() {
        let loaded = RequestDefaults { n_beams: 3, ..RequestDefaults::default() };
        let n_beams = |request: Value, endpoint| translated(request, endpoint, &loaded).options.n_beams;
        assert_eq!(n_beams(json!({}), Endpoint::Completion), 3);
        assert_eq!(n_beams(json!({"n_beams": 0}), Endpoint::Completion), 0);
        assert_eq!(n_beams(json!({"grammar": "root ::= \"a\""}), Endpoint::Completion), 0);
        assert_eq!(n_beams(json!({}), Endpoint::Speculative), 0);
    }
}
