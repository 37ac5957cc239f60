//! Corrects rules of llama.cpp's converter that accept invalid JSON, or values that do not have the format. Goes away with llama.cpp's chat
//! formats.

/// A character of a JSON string: the converter's rule without surrogates, because a lone one is invalid.
const CHAR: &str = r#"[^"\\\x7F\x00-\x1F\uD800-\uDFFF] | [\\] (["\\bfnrt] | "u" ([0-9a-ce-fA-CE-F] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}))"#;
/// A day of the Gregorian calendar. The converter accepts February 30.
const DATE: &str = concat!(
    r#"[0-9]{4} "-" (("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | "1" [0-9] | "2" [0-8]) | "#,
    r#"("0" [13-9] | "1" [0-2]) "-" ("29" | "30") | ("0" [13578] | "1" [02]) "-31") | "#,
    r#"([0-9]{2} ("0" [48] | [2468] [048] | [13579] [26]) | ([02468] [048] | [13579] [26]) "00") "-02-29""#,
);
/// A number that every parser can represent: with an exponent of one or two digits.
const NUMBER: &str = r#"("-"? integral-part) ("." decimal-part)? ([eE] [-+]? [0-9] [0-9]?)?"#;

/// The same without other rules.
const ANY_NUMBER: &str = r#""-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,16})? ([eE] [-+]? [0-9] [0-9]?)?"#;

/// Corrects a rule of the converter.
pub(super) fn fix_rule(line: &str) -> String {
    match line.split_once(" ::= ") {
        Some(("char", _)) => format!("char ::= {CHAR}\n"),
        Some(("number", _)) => format!("number ::= {NUMBER}\n"),
        Some(("date", _)) => format!("date ::= {DATE}\n"),
        // Any JSON, in the grammars of chat formats.
        Some(("json-string", _)) => format!("json-string ::= [\"] ({CHAR})* [\"]\n"),
        Some(("json-number", _)) => format!("json-number ::= {ANY_NUMBER}\n"),
        // The rule for names of additional properties. The converter allows any first character except a quote, so also half an
        // escape. And its optional part has to be a rule of its own, because the parser counts everything inside as repeated.
        // (`names-` is not a prefix of the converter's rule names, which begin with `ref` here.)
        Some((name, body)) if body.starts_with("[\"] ( ") => {
            let body = body.replace("[^\"", "[^\"\\\\\\x7F\\x00-\\x1F\\uD800-\\uDFFF");
            match body.strip_prefix("[\"] ( ").and_then(|body| body.strip_suffix(" )? [\"]")) {
                Some(inner) => format!("{name} ::= [\"] names-{name}? [\"]\nnames-{name} ::= {inner}\n"),
                None => format!("{name} ::= {body}\n"),
            }
        }
        _ => format!("{line}\n"),
    }
}
