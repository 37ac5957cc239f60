//! The bounds of numbers are exact.

use serde_json::{Value, json};

use super::{accepts, automaton, to_grammar};

#[test]
fn bounds_of_integers_are_exact() {
    for (least, most) in [(0, 0), (0, 9), (-7, 13), (5, 105), (-120, -9), (99, 101), (-1, 1200), (1, 10), (10, 999)] {
        let schema = json!({"type": "integer", "minimum": least, "maximum": most});
        let grammar = automaton(&to_grammar(&schema).unwrap()).unwrap();
        for number in -1300..1300 {
            assert_eq!(
                accepts(&grammar, &number.to_string()),
                (least..=most).contains(&number),
                "{number} under {schema}"
            );
        }
    }
    for (schema, valid, invalid) in [
        (json!({"type": "integer", "minimum": 205}), ["205", "1000", "999999999999999"], ["204", "99", "-300"]),
        (json!({"type": "integer", "exclusiveMaximum": 0}), ["-1", "-10", "-999999999999999"], ["0", "1", "10"]),
        (json!({"type": "integer", "minimum": 1.5, "exclusiveMaximum": 4.0}), ["2", "3", "3"], ["1", "4", "1.5"]),
        // Draft 4.
        (json!({"type": "integer", "minimum": 1, "exclusiveMinimum": true}), ["2", "3", "10"], ["1", "0", "-1"]),
    ] {
        let grammar = automaton(&to_grammar(&schema).unwrap()).unwrap();
        assert!(valid.iter().all(|text| accepts(&grammar, text)), "{schema}");
        assert!(!invalid.iter().any(|text| accepts(&grammar, text)), "{schema}");
    }
}

/// All decimals of up to three digits after the point, against the comparison of floats.
#[test]
fn bounds_of_numbers_are_exact() {
    let bounds = [
        (Some("0"), None),
        (None, Some("0")),
        (Some("0"), Some("1")),
        (Some("-0.5"), Some("2.25")),
        (Some("0.15"), Some("0.152")),
        (Some("1"), Some("1")),
        (Some("-2.5"), Some("-1.05")),
        (Some("0.999"), Some("1.001")),
        (Some("-1e-2"), Some("1E1")),
        (Some("1.09"), Some("1.1")),
        (Some("9.5"), Some("10.5")),
    ];
    for (least, most) in bounds {
        for is_exclusive in [false, true] {
            let mut schema = json!({"type": "number"});
            let names = if is_exclusive { ["exclusiveMinimum", "exclusiveMaximum"] } else { ["minimum", "maximum"] };
            let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            for (name, bound) in names.into_iter().zip([least, most]) {
                schema.as_object_mut().unwrap().extend(bound.map(|bound| (name.to_owned(), parse(bound))));
            }
            let Ok(gbnf) = to_grammar(&schema) else {
                assert!(is_exclusive && least == most, "{schema}");
                continue;
            };
            let grammar = automaton(&gbnf).unwrap();
            for thousandths in -3000_i32..12000 {
                let digits = format!("{:04}", thousandths.abs());
                let (whole, fraction) = digits.split_at(digits.len() - 3);
                let short = fraction.trim_end_matches('0');
                let sign = if thousandths < 0 { "-" } else { "" };
                for fraction in [fraction, short] {
                    let point = if fraction.is_empty() { "" } else { "." };
                    let text = format!("{sign}{whole}{point}{fraction}");
                    let number: f64 = text.parse().unwrap();
                    let holds = |bound: Option<&str>, side: f64| {
                        let distance = bound.map(|bound| (number - bound.parse::<f64>().unwrap()) * side);
                        distance.is_none_or(|distance| distance > 0.0 || distance == 0.0 && !is_exclusive)
                    };
                    assert_eq!(
                        accepts(&grammar, &text),
                        holds(least, 1.0) && holds(most, -1.0),
                        "{text} under {schema}\n{gbnf}"
                    );
                }
            }
            assert!(!accepts(&grammar, "-0") || accepts(&grammar, "0"), "{schema}");
        }
    }
}

/// A number that is rounded to an exclusive bound is not valid.
#[test]
fn numbers_do_not_round_to_an_exclusive_bound() {
    let schema = json!({"type": "number", "exclusiveMaximum": 10, "exclusiveMinimum": 0.1});
    let grammar = automaton(&to_grammar(&schema).unwrap()).unwrap();
    assert!(accepts(&grammar, "9.9999999999999") && accepts(&grammar, "0.1000000000001"));
    assert!(!accepts(&grammar, "9.99999999999999999") && !accepts(&grammar, "0.10000000000000000001"));
    // A bound of more than 15 digits: no number of 15 is above it, and all are below it.
    for bound in [json!(1e15), json!(1e20), json!(1e300)] {
        for kind in ["integer", "number"] {
            assert!(to_grammar(&json!({"type": kind, "minimum": bound})).is_err(), "{kind}, {bound}");
            let below = automaton(&to_grammar(&json!({"type": kind, "maximum": bound})).unwrap()).unwrap();
            assert!(accepts(&below, "999999999999999") && accepts(&below, "-999999999999999"), "{kind}, {bound}");
        }
    }
}
