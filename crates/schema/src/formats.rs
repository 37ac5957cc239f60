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
/// A duration of RFC 3339, appendix A, without time.
const DAYS: &str = "([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)";
/// The time of a duration.
const HOURS: &str = "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)";
/// A name of RFC 1123.
const HOST: &str = r"LABEL(\.LABEL)*";
const LABEL: &str = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
/// An address of RFC 2673.
const IPV4: &str = r"(BYTE\.){3}BYTE";
const BYTE: &str = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
/// An address of RFC 4291.
const IPV6: &str = concat!(
    "((HEX:){6}LAST|::(HEX:){5}LAST|HEX?::(HEX:){4}LAST|((HEX:)?HEX)?::(HEX:){3}LAST|((HEX:){0,2}HEX)?::(HEX:){2}LAST|",
    "((HEX:){0,3}HEX)?::HEX:LAST|((HEX:){0,4}HEX)?::LAST|((HEX:){0,5}HEX)?::HEX|((HEX:){0,6}HEX)?::)",
);
/// A mailbox of RFC 5321.
const EMAIL: &str = r#"(ATOM+(\.ATOM+)*|"([ !#-\[\]-~]|\\[ -~])*")@(HOST|\[IPV4\]|\[IPv6:IPV6\])"#;
const ATOM: &str = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]";
/// Parts of RFC 3986.
const URI: &str = r"[A-Za-z][A-Za-z0-9+.-]*:(//AUTHORITYPATH|/(CHAR+PATH)?|CHAR+PATH)?TAIL";
const RELATIVE: &str = r"(//AUTHORITYPATH|/(CHAR+PATH)?|PLAIN+PATH)?TAIL";
const PATH: &str = "(/CHAR*)*";
const TAIL: &str = r"(\?(CHAR|[/?])*)?(#(CHAR|[/?])*)?";
const CHAR: &str = "(PLAIN|:)";
const PLAIN: &str = r"([A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})";
const AUTHORITY: &str = r"((NAME|:)*@)?(\[(IPV6|v[0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\]|NAME*)(:[0-9]*)?";
const NAME: &str = r"([A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})";
/// The characters of names in addresses, and those that RFC 3987 adds.
const UNRESERVED: &str = "A-Za-z0-9._~";
const FURTHER: &str = "\u{A0}-\u{D7FF}\u{F900}-\u{FDCF}\u{FDF0}-\u{FFEF}\u{10000}-\u{EFFFD}";
/// A template of RFC 6570.
const TEMPLATE: &str = concat!(
    r"([!#$&()*+,./0-9:;=?@A-Z\[\]_a-z~FURTHER-]|%[0-9A-Fa-f]{2}|",
    r"\{[+#./;?&=,!@|]?VARIABLE(,VARIABLE)*\})*",
);
/// A pointer of RFC 6901.
const POINTER: &str = "(/([^/~]|~[01])*)*";
/// Regular expressions of ECMA 262, with the nesting of groups that [`regex`] gives them: not all of them, but no others.
const TERM: &str = r"([^\\()\[\]{}*+?|^$]|ESCAPE|\[\^?-?(ITEM)+-?\])QUANTIFIER?|\^|\$|\\[bB]|\|";
const ESCAPE: &str = r"\\([^A-Za-z0-9]|[dDwWsSnrtvf]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4})";
const ITEM: &str = r"[^\\\[\]^-]|ESCAPE|a-[b-z]|A-[B-Z]|0-[1-9]|[b-y]-z|[B-Y]-Z|[1-8]-9| -~";
const QUANTIFIER: &str = concat!(
    r"(([*+?]|\{([0-9]{1,3},?|0,[0-9]{1,3}|1,[1-9][0-9]{0,2}|[2-9],[1-9][0-9]{1,2}|",
    r"2,[2-9]|3,[3-9]|4,[4-9]|5,[5-9]|6,[6-9]|7,[7-9]|8,[89])\})\??)",
);

/// The pattern of regular expressions with groups in groups, so many.
fn regex(depth: usize) -> String {
    match depth.checked_sub(1) {
        None => format!("({TERM})*"),
        Some(depth) => {
            let (inner, look) = (regex(depth), regex(depth.saturating_sub(1)));
            format!(r"({TERM}|\((\?:)?{inner}\)QUANTIFIER?|\(\?<?[=!]{look}\))*")
        }
    }
}

/// Words of the patterns above, and the patterns that they stand for. Later ones have none of the earlier ones.
const WORDS: [(&str, &str); 20] = [
    ("ITEM", ITEM),
    ("ESCAPE", ESCAPE),
    ("QUANTIFIER", QUANTIFIER),
    ("FURTHER", FURTHER),
    ("VARIABLE", r"VARCHAR(\.?VARCHAR)*(:[1-9][0-9]{0,3}|\*)?"),
    ("VARCHAR", "([A-Za-z0-9_]|%[0-9A-Fa-f]{2})"),
    ("HOST", HOST),
    ("LABEL", LABEL),
    ("AUTHORITY", AUTHORITY),
    ("PATH", PATH),
    ("TAIL", TAIL),
    ("CHAR", CHAR),
    ("PLAIN", PLAIN),
    ("NAME", NAME),
    ("IPV6", IPV6),
    ("LAST", "(HEX:HEX|IPV4)"),
    ("IPV4", IPV4),
    ("HEX", "[0-9a-fA-F]{1,4}"),
    ("BYTE", BYTE),
    ("ATOM", ATOM),
];

/// The pattern of the texts of a format.
pub(crate) fn pattern(format: &str) -> Option<String> {
    let pattern = match format {
        "date" => DATE.to_owned(),
        "time" => TIME.to_owned(),
        "date-time" => format!("({DATE})T{TIME}"),
        "uuid" => UUID.to_owned(),
        "duration" => format!("P({DAYS}({HOURS})?|{HOURS}|[0-9]+W)"),
        "email" => EMAIL.to_owned(),
        "hostname" => HOST.to_owned(),
        "ipv4" => IPV4.to_owned(),
        "ipv6" => IPV6.to_owned(),
        "uri" | "iri" => URI.to_owned(),
        "uri-reference" | "iri-reference" => format!("({URI})|({RELATIVE})"),
        "uri-template" => TEMPLATE.to_owned(),
        "json-pointer" => POINTER.to_owned(),
        "regex" => regex(3),
        "relative-json-pointer" => format!("(0|[1-9][0-9]*)(#|{POINTER})"),
        _ => return None,
    };
    let pattern = WORDS.iter().fold(pattern, |pattern, (word, meaning)| pattern.replace(word, meaning));
    let is_international = format.starts_with("iri");
    Some(if is_international { pattern.replace(UNRESERVED, &format!("{UNRESERVED}{FURTHER}")) } else { pattern })
}
