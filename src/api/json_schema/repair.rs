//! Rules of llama.cpp's converter that let through what is not valid JSON, or no value of the format, corrected.

/// A JSON string's character: what the converter has, without surrogates, of which two halves could go astray.
const CHAR: &str = r#"[^"\\\x7F\x00-\x1F\uD800-\uDFFF] | [\\] (["\\bfnrt] | "u" ([0-9a-ce-fA-CE-F] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}))"#;
/// A day of the Gregorian calendar: the converter has a 30th of February.
const DATE: &str = concat!(
    r#"[0-9]{4} "-" (("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | "1" [0-9] | "2" [0-8]) | "#,
    r#"("0" [13-9] | "1" [0-2]) "-" ("29" | "30") | ("0" [13578] | "1" [02]) "-31") | "#,
    r#"([0-9]{2} ("0" [48] | [2468] [048] | [13579] [26]) | ([02468] [048] | [13579] [26]) "00") "-02-29""#,
);
/// A number that every parser can hold: exponents of one or two digits.
const NUMBER: &str = r#"("-"? integral-part) ("." decimal-part)? ([eE] [-+]? [0-9] [0-9]?)?"#;

/// A rule of the converter's, corrected.
pub(super) fn repair(line: &str) -> String {
    match line.split_once(" ::= ") {
        Some(("char", _)) => format!("char ::= {CHAR}\n"),
        Some(("number", _)) => format!("number ::= {NUMBER}\n"),
        Some(("date", _)) => format!("date ::= {DATE}\n"),
        // A name that is none of some may begin with anything but a quote there; also with half an escape. And what may be
        // left out has to be one rule (the converter's own begin with `ref` here): the parser counts all in it as repeated.
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
