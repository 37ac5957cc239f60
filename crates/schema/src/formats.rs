//! The formats of strings that are enforced, as patterns. Other formats are annotations, as in the standard.

/// A day of the Gregorian calendar.
const DATE: &str = concat!(
    "[0-9]{4}-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)|",
    "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29",
);
/// A time of RFC 3339, with seconds and an offset.
const TIME: &str =
    concat!(r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?", "(Z|[-+]([01][0-9]|2[0-3]):[0-5][0-9])",);
/// A UUID of RFC 9562.
const UUID: &str = "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}";

/// The pattern of the texts of a format.
pub(crate) fn pattern(format: &str) -> Option<String> {
    match format {
        "date" => Some(DATE.to_owned()),
        "time" => Some(TIME.to_owned()),
        "date-time" => Some(format!("({DATE})T{TIME}")),
        "uuid" => Some(UUID.to_owned()),
        _ => None,
    }
}
