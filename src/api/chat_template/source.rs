//! What a template's source is changed to, so that minijinja takes what Jinja2 with transformers' extensions takes.

use super::lists;

/// The source with all line ends `\n`, and with some tags replaced:
///
/// - `{% generation %}` and `{% endgeneration %}`, with which training code marks the assistant's text, by tags which do
///   nothing but open the same scope;
/// - `{% set x = [] %}` by a list that can grow.
pub fn prepared(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut result = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some((before, tag)) = rest.split_once("{%") {
        result.push_str(before);
        result.push_str("{%");
        rest = tag;
        let Some((inside, behind)) = tag.split_once("%}") else { continue };
        if let Some(inside) = replaced(inside) {
            result.push_str(&inside);
            result.push_str("%}");
            rest = behind;
        }
    }
    result + rest
}

/// What stands between `{%` and `%}`, where it is to be something else.
fn replaced(inside: &str) -> Option<String> {
    let statement = inside.trim_matches(|c: char| c == '-' || c == '+' || c.is_ascii_whitespace());
    let new = match statement {
        "generation" => "with".to_owned(),
        "endgeneration" => "endwith".to_owned(),
        _ => {
            let (target, value) = statement.strip_prefix("set ")?.split_once('=')?;
            let empty = value.trim().strip_prefix('[')?.strip_suffix(']')?.trim().is_empty();
            empty.then(|| format!("set {target}= {}()", lists::MAKE))?
        }
    };
    Some(inside.replacen(statement, &new, 1))
}
