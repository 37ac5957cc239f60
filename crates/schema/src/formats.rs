//! The formats of strings that are enforced.

use crate::rules::Rules;

/// A day of the Gregorian calendar.
const DATE: &str = concat!(
    r#"[0-9]{4} "-" (("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | "1" [0-9] | "2" [0-8]) | "#,
    r#"("0" [13-9] | "1" [0-2]) "-" ("29" | "30") | ("0" [13578] | "1" [02]) "-31") | "#,
    r#"([0-9]{2} ("0" [48] | [2468] [048] | [13579] [26]) | ([02468] [048] | [13579] [26]) "00") "-02-29""#,
);
/// A time of RFC 3339, with seconds and an offset.
const TIME: &str = concat!(
    r#"([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{1,9})? "#,
    r#"("Z" | [+-] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9])"#,
);
/// A UUID of RFC 9562.
const UUID: &str = r#"[0-9a-fA-F]{8} "-" [0-9a-fA-F]{4} "-" [0-9a-fA-F]{4} "-" [0-9a-fA-F]{4} "-" [0-9a-fA-F]{12}"#;

/// The name of the rule that matches the texts of a format, among the added rules.
pub(crate) fn rule(format: &str, rules: &mut Rules) -> String {
    match format {
        "date" => rules.add("date", DATE),
        "time" => rules.add("time", TIME),
        "uuid" => rules.add("uuid", UUID),
        _ => {
            let (date, time) = (rule("date", rules), rule("time", rules));
            rules.add("date-time", format!("{date} \"T\" {time}"))
        }
    }
}

/// Checks the formats of RFC 3339 and RFC 4122; other formats are annotations.
pub(crate) fn has_format(text: &str, format: &str) -> bool {
    match format {
        "date" => is_date(text),
        "time" => is_time(text),
        "date-time" => text.split_once('T').is_some_and(|(date, time)| is_date(date) && is_time(time)),
        "uuid" => {
            let lengths: Vec<usize> = text.split('-').map(str::len).collect();
            lengths == [8, 4, 4, 4, 12] && text.chars().all(|char| char == '-' || char.is_ascii_hexdigit())
        }
        _ => true,
    }
}

/// The number in a text of exactly `n` digits.
fn digits(text: &str, n: usize) -> Option<u32> {
    text.parse().ok().filter(|_| text.len() == n && text.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts.as_slice() else { return false };
    let (Some(year), Some(month), Some(day)) = (digits(year, 4), digits(month, 2), digits(day, 2)) else {
        return false;
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let days = month.checked_sub(1).and_then(|month| days.get(month as usize));
    days.is_some_and(|days| (1..=*days).contains(&day))
}

fn is_time(text: &str) -> bool {
    let is_below = |text: &str, most: u32| digits(text, 2).is_some_and(|number| number <= most);
    let is_clock = |(hours, minutes): (&str, &str)| is_below(hours, 23) && is_below(minutes, 59);
    let clock = |text: &str| text.len() == 5 && text.split_once(':').is_some_and(is_clock);
    let (Some(begin), Some(rest)) = (text.get(..5), text.get(5..)) else { return false };
    let Some(rest) = rest.strip_prefix(':') else { return false };
    let (Some(seconds), Some(rest)) = (rest.get(..2), rest.get(2..)) else { return false };
    let zone = match rest.strip_prefix('.') {
        Some(fraction) => {
            let zone = fraction.trim_start_matches(|char: char| char.is_ascii_digit());
            if zone.len() == fraction.len() {
                return false;
            }
            zone
        }
        None => rest,
    };
    clock(begin) && is_below(seconds, 59) && (zone == "Z" || zone.strip_prefix(['+', '-']).is_some_and(clock))
}
