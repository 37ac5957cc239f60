//! Regular expressions in schemas.
//!
//! llama.cpp's converter copies a pattern's characters into the grammar unchanged, so `.` and `[^a]` would accept an unescaped quote
//! inside a JSON string. It replaces unsupported patterns by "any string", with only a message on stderr. And a pattern is found
//! anywhere in a text, while a grammar describes the whole text. So each pattern is read into a tree, surrounded by any text where it
//! has no anchor, and written with classes of the characters that JSON strings have. What a grammar cannot express is refused.

mod classes;
mod node;
mod parse;
mod search;
#[cfg(test)]
mod tests;

use self::node::PatternNode;

/// The maximum length of what a pattern is converted to, in bytes.
const MAX_LEN: usize = 1 << 16;

/// Converts a pattern to one that the converter handles correctly: anchored at both ends, and with only classes, groups, `|` and
/// repetitions. The text has at least `least` and at most `most` characters. The error names the part that a grammar cannot express.
pub(super) fn convert(pattern: &str, least: u64, most: Option<u64>) -> Result<String, String> {
    let node = search::whole_text(parse::parse(pattern)?)?;
    let node = node.limit(least, most).ok_or("parts of several lengths beside minLength or maxLength")?;
    let mut out = String::from("^");
    write(&node, &mut out)?;
    Ok(out + "$")
}

/// Writes a node.
fn write(node: &PatternNode, out: &mut String) -> Result<(), String> {
    if out.len() > MAX_LEN {
        return Err("too many characters and classes".into());
    }
    match node {
        PatternNode::Class(set) => set.write(out)?,
        PatternNode::Seq(nodes) => {
            for node in nodes {
                if matches!(node, PatternNode::Alt(_)) {
                    write_group(node, out)?;
                } else {
                    write(node, out)?;
                }
            }
        }
        PatternNode::Alt(nodes) => {
            for (i, node) in nodes.iter().enumerate() {
                if i > 0 {
                    out.push('|');
                }
                write(node, out)?;
            }
        }
        PatternNode::Repeat(item, least, most) => {
            if matches!(**item, PatternNode::Class(_)) {
                write(item, out)?;
            } else {
                write_group(item, out)?;
            }
            out.push_str(&match (least, most) {
                (0, None) => "*".to_owned(),
                (1, None) => "+".to_owned(),
                (0, Some(1)) => "?".to_owned(),
                (1, Some(1)) => String::new(),
                (least, None) => format!("{{{least},}}"),
                (least, Some(most)) => format!("{{{least},{most}}}"),
            });
        }
        // None are left in a pattern for the whole text.
        PatternNode::Start | PatternNode::End => {}
    }
    Ok(())
}

fn write_group(node: &PatternNode, out: &mut String) -> Result<(), String> {
    out.push('(');
    write(node, out)?;
    out.push(')');
    Ok(())
}
