use super::super::tests::{check, check_error};
use super::*;
use crate::sampling::DrySettings;

fn check_sampling(document: Value, change: impl FnOnce(&mut SamplingSettings)) {
    check(document, |request| change(&mut request.sampling));
}

#[test]
fn sampler_fields_are_parsed() {
    check_sampling(json!({"temperature": 0}), |s| s.temperature = 0.0);
    check_sampling(json!({"temperature": -5}), |s| s.temperature = -5.0);
    check_sampling(json!({"temp": 0.5}), |s| s.temperature = 0.5);
    check_sampling(json!({"dynatemp_range": 0.5, "dynatemp_exponent": 2}), |s| {
        (s.dynatemp_range, s.dynatemp_exponent) = (0.5, 2.0)
    });
    check_sampling(json!({"top_k": -7, "top_p": 0.5, "min_p": 0.05}), |s| {
        (s.top_k, s.top_p, s.min_p) = (-7, 0.5, 0.05)
    });
    check_sampling(json!({"tfs_z": 0.5, "typical_p": 0.25, "top_n_sigma": 1}), |s| {
        (s.tfs_z, s.typical_p, s.top_n_sigma) = (0.5, 0.25, 1.0)
    });
    check_sampling(json!({"xtc_probability": 0.5, "xtc_threshold": 0.25}), |s| {
        (s.xtc_probability, s.xtc_threshold) = (0.5, 0.25)
    });
    check_sampling(
        json!({"dry_multiplier": 0.5, "dry_base": 2, "dry_allowed_length": 3, "dry_penalty_last_n": 100, "dry_sequence_breakers": ["a", "\n"]}),
        |s| {
            s.dry = DrySettings {
                multiplier: 0.5,
                base: 2.0,
                allowed_length: 3,
                penalty_last_n: 100,
                sequence_breakers: vec!["a".into(), "\n".into()],
            }
        },
    );
    check_sampling(json!({"repeat_last_n": -1, "repeat_penalty": 1.5}), |s| {
        (s.repeat_last_n, s.repeat_penalty) = (-1, 1.5)
    });
    check_sampling(json!({"presence_penalty": -2, "frequency_penalty": 0.5, "penalize_nl": false}), |s| {
        (s.presence_penalty, s.frequency_penalty, s.penalize_nl) = (-2.0, 0.5, false);
    });
    check_sampling(json!({"adaptive_target": 0.3, "adaptive_decay": 0.5, "samplers": ["adaptive-p"]}), |s| {
        (s.adaptive_target, s.adaptive_decay) = (0.3, 0.5);
        s.stages = vec![Stage::AdaptiveP];
    });
    check_sampling(json!({"mirostat": 1, "mirostat_tau": 3, "mirostat_eta": 0.5}), |s| {
        (s.mirostat, s.mirostat_tau, s.mirostat_eta) = (MirostatVersion::V1, 3.0, 0.5);
    });
    check_sampling(json!({"mirostat": 2.0}), |s| s.mirostat = MirostatVersion::V2);
    check_sampling(json!({"min_keep": 2, "n_probs": 5}), |s| (s.min_keep, s.n_probs) = (2, 5));
    check_sampling(json!({"seed": 42}), |s| s.seed = 42);

    check_error(json!({"temperature": "hot"}), "temperature: expected a number up to 1000, got \"hot\"");
    check_error(json!({"temperature": 1001}), "temperature: expected a number up to 1000, got 1001");
    check_error(json!({"temperature": 1e300}), "temperature");
    check_error(json!({"temp": [1]}), "temp: expected a number");
    for key in ["top_p", "min_p", "typical_p", "tfs_z", "xtc_probability", "xtc_threshold"] {
        check_error(json!({key: 1.5}), &format!("{key}: expected a number from 0 to 1, got 1.5"));
        check_error(json!({key: -0.5}), key);
    }
    check_error(json!({"top_k": 1.5}), "top_k: expected a whole number");
    check_error(json!({"repeat_penalty": 0}), "repeat_penalty: expected a number from 0.01 to 100, got 0");
    check_error(json!({"presence_penalty": 1e5}), "presence_penalty: expected a number from -10000 to 10000");
    check_error(json!({"repeat_last_n": -2}), "repeat_last_n: expected a whole number from -1");
    check_error(json!({"repeat_last_n": 1 << 30}), "repeat_last_n");
    check_error(json!({"penalize_nl": "yes"}), "penalize_nl: expected true or false, got \"yes\"");
    check_error(json!({"mirostat": 3}), "mirostat: expected a whole number from 0 to 2, got 3");
    check_error(json!({"dry_base": 0.5}), "dry_base: expected a number from 1 to 1000");
    check_error(json!({"dry_sequence_breakers": "a"}), "dry_sequence_breakers: expected an array of strings");
    check_error(
        json!({"dry_sequence_breakers": ["a", ""]}),
        "dry_sequence_breakers[1]: expected a string that is not empty",
    );
    check_error(json!({"n_probs": -1}), "n_probs: expected a whole number from 0");
    check_error(json!({"seed": -2}), "seed: expected a whole number from -1 to 4294967295, got -2");
    check_error(json!({"seed": 4294967296u64}), "seed");
}

/// They are limited because each is searched for in the whole vocabulary.
#[test]
fn sequence_breakers_are_limited_and_deduplicated() {
    let check = |breakers: &[String], read: &[String]| {
        let document = json!({"dry_sequence_breakers": breakers});
        check_sampling(document, |s| s.dry.sequence_breakers = read.to_vec());
    };
    let different: Vec<String> = (0..65).map(|i| format!("<{i}>")).collect();
    check(&different[..64], &different[..64]);
    check(&[&different[..64], &different[..64]].concat(), &different[..64]);
    check(&["b", "a", "b"].map(String::from), &["b", "a"].map(String::from));
    // A long breaker is truncated for the search, but reported as it was sent.
    check(&["x".repeat(1000), "x".repeat(1000)], &["x".repeat(1000)]);
    check_error(
        json!({"dry_sequence_breakers": different}),
        "dry_sequence_breakers: expected at most 64 different strings, got 65",
    );
}

#[test]
fn sampler_order_is_parsed() {
    use Stage::*;
    let check =
        |value: Value, stages: &[Stage]| check_sampling(json!({"samplers": value}), |s| s.stages = stages.to_vec());
    check(json!(["top_k", "temperature"]), &[TopK, Temperature]);
    check(json!([]), &[]);
    check(
        json!(["top-k", "TopP", "minp", "typ", "typical_p", "nucleus", "temp"]),
        &[TopK, TopP, MinP, TypicalP, TypicalP, TopP, Temperature],
    );
    check(
        json!("edskfypmxta"),
        &[Penalties, Dry, TopNSigma, TopK, TfsZ, TypicalP, TopP, MinP, Xtc, Temperature, AdaptiveP],
    );
    check(json!("top_k; temp;"), &[TopK, Temperature]);
    check(
        json!(["penalties", "dry", "top_n_sigma", "top_k", "tfs_z", "typ_p", "top_p", "min_p", "xtc", "temperature"]),
        &SamplingSettings::default().stages,
    );
    check_error(json!({"samplers": ["top_k", "tpo_p"]}), "samplers[1]: expected one of \"penalties\", \"dry\"");
    check_error(json!({"samplers": ["tpo_p"]}), "(did you mean \"top_p\"?)");
    check_error(json!({"samplers": ["infill"]}), "samplers[0] \"infill\": not available in this version");
    check_error(json!({"samplers": [5]}), "samplers[0]: expected a string, got 5");
    check_error(
        json!({"samplers": "kqt"}),
        "samplers: expected an array of names, or letters of \"edskfypmxta\", got \"kqt\"",
    );
    check_error(json!({"samplers": 5}), "samplers: expected an array of names, got 5");
    check_error(json!({"samplers": "k".repeat(65)}), "samplers: expected at most 64 stages, got 65");
}

/// The reference has a row for each field: its name, default and range, and what it means.
#[test]
fn reference_lists_defaults_and_ranges() {
    const REFERENCE: &str = include_str!("../../../../../docs/reference/request.md");
    let (_, table) = REFERENCE.split_once("<!-- samplers: ").expect("the start of the table");
    let (table, _) = table.split_once("<!-- /samplers -->").expect("the table's end");
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| `")).collect();
    let defaults = report(&SamplingSettings::default());
    let bound = |bound: f32| if bound.abs() == ANY { String::new() } else { bound.to_string() };
    let mut ranges = vec![
        ("mirostat", "0".to_owned(), "2".to_owned()),
        ("samplers", String::new(), String::new()),
        ("dry_sequence_breakers", String::new(), String::new()),
    ];
    ranges.extend(FIELDS.iter().map(|SamplerField { key, setting }| match *setting {
        Number(_, min, max) => (*key, bound(min), bound(max)),
        Int(_, min, max) | Count(_, min, max) => (*key, min.to_string(), max.to_string()),
        Flag(_) => (*key, String::new(), String::new()),
    }));
    assert_eq!(rows.len(), ranges.len());
    for (key, min, max) in ranges {
        let row = format!("| `{key}` | `{}` | {min} | {max} | ", defaults.get(key).expect(key));
        let found = rows.iter().find(|line| line.starts_with(&row)).unwrap_or_else(|| panic!("no row {row}"));
        assert!(found.len() > row.len() + 4, "{found}");
    }
    // Every default is in its own range, and parses to itself.
    check(report(&SamplingSettings::default()).into_iter().collect(), |_| ());
}

/// The names of the sampler's fields.
pub fn sampler_fields() -> impl Iterator<Item = &'static str> {
    FIELDS.iter().map(|field| field.key)
}
