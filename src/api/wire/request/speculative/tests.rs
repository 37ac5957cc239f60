use proptest::prelude::*;

use super::*;
use crate::api::wire::fields::parse_object;
use crate::speculative::SuffixParams;

/// A request without `speculative` does not speculate.
const IF_ASKED: bool = true;
const BY_DEFAULT: bool = false;

fn read(document: &Value, if_asked: bool, defaults: &SpeculativeOptions) -> Result<(SpeculationRequest, Vec<String>)> {
    let map = document.as_object().unwrap();
    let mut fields = Fields::new(map);
    let speculation = SpeculationRequest::read(&mut fields, if_asked, defaults)?;
    Ok((speculation, fields.finish()))
}

fn settings(document: Value) -> Settings {
    let (speculation, warnings) = read(&document, BY_DEFAULT, &SpeculativeOptions::default()).unwrap();
    assert_eq!(warnings, Vec::<String>::new(), "{document}");
    speculation.settings.unwrap()
}

#[test]
fn speculation_is_on_or_off_as_requested() {
    let check = |if_asked, document: Value, on: bool, report: bool, disabled: Option<&str>| {
        let (speculation, _) = read(&document, if_asked, &SpeculativeOptions::default()).unwrap();
        let found = (speculation.settings.is_some(), speculation.report, speculation.disabled);
        assert_eq!(found, (on, report, disabled), "{if_asked} {document}");
    };
    check(IF_ASKED, json!({}), false, false, None);
    check(IF_ASKED, json!({"speculative": null}), false, false, None);
    check(IF_ASKED, json!({"speculative": false}), false, false, None);
    check(IF_ASKED, json!({"speculative": true}), true, true, None);
    check(IF_ASKED, json!({"speculative": {}}), true, true, None);
    check(IF_ASKED, json!({"speculative.n_max": 4}), true, true, None);
    check(IF_ASKED, json!({"speculative": false, "speculative.n_max": 4}), false, false, None);
    check(IF_ASKED, json!({"speculative": {"type": "none"}}), false, true, Some("speculative.type is none"));
    check(IF_ASKED, json!({"speculative.type": "none"}), false, true, Some("speculative.type is none"));
    check(BY_DEFAULT, json!({}), true, true, None);
    check(BY_DEFAULT, json!({"speculative": true}), true, true, None);
    check(BY_DEFAULT, json!({"speculative": false}), false, true, Some("speculative is false"));
    check(BY_DEFAULT, json!({"speculative": {"n_max": 0}}), false, true, Some("speculative.n_max is 0"));
    let draft_only = Some("speculative.model is draft: the draft model generates alone");
    check(IF_ASKED, json!({"speculative": {"model": "draft"}}), false, true, draft_only);
    check(BY_DEFAULT, json!({"speculative.model": "draft"}), false, true, draft_only);
    check(IF_ASKED, json!({"speculative": {"model": "target"}}), true, true, None);
}

#[test]
fn values_are_parsed() {
    let base = Settings::default;
    let check = |document: Value, expected: Settings| assert_eq!(settings(document.clone()), expected, "{document}");
    check(json!({}), base());
    check(
        json!({"speculative": {"n_max": 64, "n_min": 64, "p_min": 1}}),
        Settings { n_max: 64, n_max_text: 64, n_min: 64, p_min: 1.0, ..base() },
    );
    check(json!({"speculative": {"n_max": 3, "n_max_text": 9}}), Settings { n_max: 3, n_max_text: 9, ..base() });
    check(json!({"speculative": {"n_max": 3.0, "n_min": null}}), Settings { n_max: 3, n_max_text: 3, ..base() });
    check(
        json!({"speculative.n_max": 5, "speculative.n_min": 2, "speculative.p_min": 0.5, "speculative.type": "draft"}),
        Settings { n_max: 5, n_max_text: 5, n_min: 2, p_min: 0.5, sources: vec![DrafterKind::Draft], ..base() },
    );
    check(
        json!({"speculative": {"n_min": 2}, "speculative.n_max": 5}),
        Settings { n_max: 5, n_max_text: 5, n_min: 2, ..base() },
    );
    check(
        json!({"speculative": {"verify": "match", "adaptive": false}}),
        Settings { verify: Verify::Match, adaptive: Adaptive::Fixed, ..base() },
    );
    check(json!({"speculative": {"verify": "coupled", "adaptive": true}}), base());
    // `speculative.cpp`: 16 tokens first, then up to 30.
    let heuristic = || Settings { adaptive: Adaptive::Heuristic, n_draft: 16, n_max: 30, ..base() };
    check(json!({"speculative": {"adaptive": "heuristic"}}), heuristic());
    check(json!({"speculative": {"adaptive": "heuristic", "n_draft": 5}}), Settings { n_draft: 5, ..heuristic() });
    check(
        json!({"speculative": {"adaptive": "heuristic", "n_max": 16}}),
        Settings { n_max: 16, n_max_text: 16, ..heuristic() },
    );
    check(json!({"speculative": {"n_draft": 5}}), Settings { n_draft: 5, n_max: 5, ..base() });
    let types = |value: Value, sources: Vec<DrafterKind>| {
        check(json!({"speculative": {"type": value}}), Settings { sources, ..base() });
    };
    types(json!("auto"), base().sources);
    types(json!(["auto", "draft-simple", "none"]), base().sources);
    types(json!(["ngram-cache", "suffix", "ngram-cache"]), vec![DrafterKind::NgramCache, DrafterKind::Suffix]);
    types(json!(["mtp", "suffix", "draft-mtp"]), vec![DrafterKind::Mtp, DrafterKind::Suffix]);
    types(json!(["draft-eagle3", "dflash", "suffix"]), vec![DrafterKind::Draft, DrafterKind::Suffix]);
    check(
        json!({"speculative": {"suffix_factor": 1.5, "suffix_depth": 3}, "speculative.suffix_p_min": 0.5}),
        Settings { suffix: SuffixParams { factor: 1.5, max_depth: 3, min_prob: 0.5, ..base().suffix }, ..base() },
    );
    // Empty values count as absent.
    check(
        json!({"speculative": {"n_branches": 0, "model": "target", "compare": false,
        "lookup_cache_static": "", "lookup_cache_dynamic": null}}),
        base(),
    );
    check(
        json!({"speculative": {"n_branches": 8, "p_split": 0.3, "verify": "block"}}),
        Settings { n_branches: 8, p_split: 0.3, verify: Verify::Block, ..base() },
    );
}

#[test]
fn invalid_values_are_refused() {
    let check = |document: Value, expected: &str| {
        let error = read(&document, IF_ASKED, &SpeculativeOptions::default()).unwrap_err();
        assert!(error.message().contains(expected), "{document}: {error} does not say {expected:?}");
    };
    let one = |key: &str, value: Value| json!({"speculative": {key: value}});
    check(json!({"speculative": "draft"}), "speculative: expected true, false or an object, got \"draft\"");
    check(json!({"speculative": 1}), "speculative: expected true, false or an object, got 1");
    check(one("n_max", json!(65)), "speculative.n_max: expected a whole number from 0 to 64, got 65");
    check(one("n_max", json!(-1)), "speculative.n_max");
    check(
        json!({"speculative": {"n_max": 4, "n_min": 5}}),
        "speculative.n_min: expected a whole number from 0 to 4, got 5",
    );
    check(one("p_min", json!(1.5)), "speculative.p_min: expected a number from 0 to 1, got 1.5");
    check(one("p_split", json!("x")), "speculative.p_split");
    check(one("verify", json!("mach")), "(did you mean \"match\"?)");
    check(one("adaptive", json!("yes")), "speculative.adaptive: expected true, false or \"heuristic\", got \"yes\"");
    check(one("type", json!([])), "speculative.type: expected a name or an array of names, got []");
    check(one("type", json!(["draft", 1])), "speculative.type: expected a name or an array of names, got 1");
    check(
        one("type", json!("drft")),
        r#""suffix", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "grammar", "auto", "none", got "drft" (did you mean "draft"?)"#,
    );
    check(one("n_draft", json!(0)), "speculative.n_draft: expected a whole number from 1 to 64, got 0");
    check(one("n_branches", json!(9)), "speculative.n_branches: expected a whole number from 0 to 8, got 9");
    check(one("model", json!("both")), "speculative.model: expected one of \"target\", \"draft\", got \"both\"");
    check(one("compare", json!("yes")), "speculative.compare: expected true or false, got \"yes\"");
    check(
        json!({"speculative": {"n_max": 4}, "speculative.n_max": 5}),
        "speculative.n_max: given as 5, and as 4 in \"speculative\"",
    );
    // Values are validated even if speculation is off.
    check(json!({"speculative": false, "speculative.n_max": 99}), "speculative.n_max");
}

#[test]
fn unknown_keys_are_warnings() {
    let check = |document: Value, expected: &[&str]| {
        let (_, warnings) = read(&document, IF_ASKED, &SpeculativeOptions::default()).unwrap();
        assert_eq!(warnings, expected, "{document}");
    };
    let warning = r#"unknown key "speculative.nmax" (did you mean "speculative.n_max"?)"#;
    check(json!({"speculative": {"nmax": 4}}), &[warning]);
    check(json!({"speculative.nmax": 4}), &[warning]);
    check(json!({"speculativ": true}), &[r#"unknown key "speculativ" (did you mean "speculative"?)"#]);
}

#[test]
fn llama_cpp_history_drafters_are_names_of_suffix() {
    let check = |speculative: Value, sources: Vec<DrafterKind>, expected: &[&str]| {
        let document = json!({"speculative": speculative});
        let (speculation, warnings) = read(&document, BY_DEFAULT, &SpeculativeOptions::default()).unwrap();
        assert_eq!(warnings, expected, "{document}");
        assert_eq!(speculation.settings.unwrap(), Settings { sources, ..Settings::default() }, "{document}");
    };
    for name in ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod"] {
        let warning = format!("speculative.type: {name} is a name of suffix");
        check(json!({"type": name}), vec![DrafterKind::Suffix], &[&warning]);
        let both = vec![DrafterKind::Draft, DrafterKind::Suffix];
        check(json!({"type": ["draft", name, "suffix"]}), both, &[&warning]);
    }
    for key in ["ngram_size_n", "ngram_m_hits", "ngram_simple_size_m", "ngram_map_k4v_min_hits", "ngram_mod_n_match"] {
        let warning = format!("speculative.{key}: ignored, suffix has no such parameter");
        check(json!({key: 3}), Settings::default().sources, &[&warning]);
    }
    check(json!({"type": "ngram-cache"}), vec![DrafterKind::NgramCache], &[]);
}

#[test]
fn init_defaults_apply_to_requests() {
    let defaults = |value: Value| {
        let map = json!({"speculative": value}).as_object().unwrap().clone();
        SpeculativeOptions::read_defaults(&mut Fields::new(&map)).unwrap()
    };
    let check = |init: Value, if_asked, request: Value, expected: Option<(usize, usize)>| {
        let (speculation, _) = read(&request, if_asked, &defaults(init.clone())).unwrap();
        let found = speculation.settings.map(|settings| (settings.n_max, settings.n_min));
        assert_eq!(found, expected, "{init} {request}");
    };
    check(json!({"n_max": 8, "n_min": 5}), BY_DEFAULT, json!({}), Some((8, 5)));
    check(json!({"n_max": 8, "n_min": 5}), IF_ASKED, json!({"speculative": true}), Some((8, 5)));
    check(json!({"n_max": 8, "n_min": 5}), IF_ASKED, json!({"speculative": {"n_min": 1}}), Some((8, 1)));
    // The default n_min yields to a smaller n_max.
    check(json!({"n_max": 8, "n_min": 5}), BY_DEFAULT, json!({"speculative": {"n_max": 3}}), Some((3, 3)));
    check(json!({"n_max": 8}), IF_ASKED, json!({}), None);
    // The load turns speculation off; a request with `speculative` turns it on again.
    check(json!(false), BY_DEFAULT, json!({}), None);
    check(json!(false), BY_DEFAULT, json!({"speculative": true}), Some((16, 0)));
    check(json!({"type": "none"}), BY_DEFAULT, json!({"speculative": true}), None);
    check(json!({"type": "none"}), BY_DEFAULT, json!({"speculative": {"type": "draft"}}), Some((16, 0)));
    check(json!({"n_max": 0}), BY_DEFAULT, json!({"speculative": {"n_max": 2}}), Some((2, 0)));
    // A load's `n_max` limits speculative.cpp's rule as well, whatever the number.
    let heuristic = json!({"speculative": {"adaptive": "heuristic"}});
    check(json!({"n_max": 16}), BY_DEFAULT, heuristic.clone(), Some((16, 0)));
    check(json!({}), BY_DEFAULT, heuristic.clone(), Some((30, 0)));
    check(json!({"n_draft": 8}), BY_DEFAULT, heuristic, Some((30, 0)));
    check(json!({"n_draft": 8}), BY_DEFAULT, json!({}), Some((8, 0)));
    check(json!({"adaptive": "heuristic"}), BY_DEFAULT, json!({"speculative": {"adaptive": true}}), Some((16, 0)));
}

fn any_scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3i64..70).prop_map(Value::from),
        (-0.5f64..1.5).prop_map(Value::from),
        any::<f64>().prop_map(|x| serde_json::Number::from_f64(x).map_or(Value::Null, Value::Number)),
        prop::sample::select(vec![
            "",
            "auto",
            "draft",
            "none",
            "match",
            "coupled",
            "heuristic",
            "block",
            "x",
            "suffix",
            "target"
        ])
        .prop_map(Value::from),
        Just(json!(["draft", "none"])),
        Just(json!(["suffix", "ngram-cache", "draft"])),
        Just(json!({})),
    ]
}

proptest! {
    /// Any values give an error that names a field, or settings within their limits that survive a round trip through JSON.
    #[test]
    fn random_values_give_valid_settings_or_an_error(
        keys in prop::collection::vec((prop::sample::select(vec![
            "type", "n_max", "n_min", "p_min", "verify", "adaptive", "p_split", "n_branches", "model", "compare", "n_draft",
        ]), any_scalar(), any::<bool>()), 0..5),
        plain in any::<bool>(),
    ) {
                let mut document = json!({"speculative": {}});
        for (key, value, flat) in keys {
            if flat { document[format!("speculative.{key}")] = value } else { document["speculative"][key] = value }
        }
        match read(&document, plain, &SpeculativeOptions::default()) {
            Err(error) => prop_assert!(error.message().starts_with("speculative"), "{}", error),
            Ok((speculation, warnings)) => {
                prop_assert_eq!(warnings, Vec::<String>::new());
                if let Some(settings) = &speculation.settings {
                    prop_assert!((1..=MAX_DRAFT).contains(&settings.n_max) && settings.n_min <= settings.n_max);
                    prop_assert!((0.0..=1.0).contains(&settings.p_min) && !settings.sources.is_empty());
                }
                prop_assert_eq!(speculation.settings.is_none(), speculation.disabled.is_some());
                let text = json!({"speculative": speculation.to_json()}).to_string();
                let again = Value::Object(parse_object(text.as_bytes()).unwrap());
                prop_assert_eq!(read(&again, plain, &SpeculativeOptions::default()).unwrap().0, speculation);
            }
        }
    }
}
