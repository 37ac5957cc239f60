//! A tree as the JSON schema that llama.cpp's converter handles correctly.
//!
//! Goes away with llama.cpp's chat formats, which convert the schemas of tools themselves. Nothing else uses it.

use serde_json::{Map, Value, json};

use crate::document::{SchemaResult, error_at, show_text};
use crate::pattern::{CharSet, PatternNode};
use crate::tree::{ArrayNode, ObjectNode, SchemaNode, SchemaTree, TextNode};

/// The maximum number of items of an array that may be empty: the converter's `(item ("," item){0,n})?` has up to n + 3 rules.
const MAX_ITEMS: u64 = 1998;
/// The maximum length of a converted pattern, in bytes.
const MAX_LEN: usize = 1 << 16;

/// The schema of a tree. The names of its definitions begin with `prefix`, and the root is no reference.
pub(crate) fn simplify(tree: &SchemaTree, prefix: &str) -> SchemaResult<Value> {
    let mut root = &tree.root;
    for _ in 0..=tree.definitions.len() {
        if let SchemaNode::Definition(id) = root {
            root = tree.definitions.get(*id).unwrap_or(root);
        }
    }
    let mut document = match node(root, prefix)? {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    let mut definitions = Map::new();
    for (id, definition) in tree.definitions.iter().enumerate() {
        definitions.insert(format!("{prefix}d{id}"), node(definition, prefix)?);
    }
    document.insert("$defs".to_owned(), definitions.into());
    Ok(document.into())
}

fn unenforceable<T>(keyword: &str) -> SchemaResult<T> {
    error_at("#", format!("{keyword} cannot be enforced by a grammar of llama.cpp"))
}

fn node(tree: &SchemaNode, prefix: &str) -> SchemaResult<Value> {
    Ok(match tree {
        SchemaNode::Any => json!({}),
        SchemaNode::Definition(id) => json!({"$ref": format!("#/$defs/{prefix}d{id}")}),
        SchemaNode::Union(nodes) => {
            let parts = nodes.iter().map(|part| node(part, prefix)).collect::<SchemaResult<Vec<Value>>>()?;
            json!({ "anyOf": parts })
        }
        SchemaNode::Values(values) => json!({ "enum": values }),
        SchemaNode::Object(tree) => object(tree, prefix)?,
        SchemaNode::Array(tree) => array(tree, prefix)?,
        SchemaNode::Text(tree) => text(tree)?,
        SchemaNode::Integer(range) => match range.bounds() {
            Some((least, most)) => json!({"type": "integer", "minimum": least, "maximum": most}),
            None => json!({"type": "integer"}),
        },
        SchemaNode::Number(range) if range.least.is_none() && range.most.is_none() => json!({"type": "number"}),
        SchemaNode::Number(_) => return unenforceable("the bounds of a number"),
        SchemaNode::Boolean => json!({"type": "boolean"}),
        SchemaNode::Null => json!({"type": "null"}),
    })
}

fn object(object: &ObjectNode, prefix: &str) -> SchemaResult<Value> {
    let n_required = object.properties.iter().filter(|one| one.is_required).count();
    let n_listed = object.properties.len();
    // The listed properties are enough.
    let additional = object.additional.as_ref().filter(|_| object.most.is_none());
    if object.least > n_required
        || object.most.is_some_and(|most| most < n_listed)
        || object.most.is_some() && n_listed == 0
    {
        return unenforceable("minProperties and maxProperties");
    }
    let is_odd = |name: &str| {
        name.is_empty() || name.contains(['"', '\\', '[', ']', '^', '-', '*']) || name.contains(char::is_control)
    };
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for one in &object.properties {
        if one.name == "*" || additional.is_some() && is_odd(&one.name) {
            return unenforceable(&format!("the property {} beside additional ones", show_text(&one.name)));
        }
        properties.insert(one.name.clone(), node(&one.value, prefix)?);
        required.extend(one.is_required.then_some(one.name.as_str()));
    }
    let rest = match additional {
        Some(rest) if rest.names.is_some() || !rest.excluded.is_empty() => return unenforceable("names of properties"),
        Some(rest) => node(&rest.value, prefix)?,
        None => Value::Bool(false),
    };
    Ok(json!({"type": "object", "properties": properties, "required": required, "additionalProperties": rest}))
}

fn array(array: &ArrayNode, prefix: &str) -> SchemaResult<Value> {
    let len = array.first.len() as u64;
    if len > 0 {
        if array.least > len || array.most.is_some_and(|most| most < len) {
            return unenforceable("a number of items beside prefixItems");
        }
        let items = array.first.iter().map(|item| node(item, prefix)).collect::<SchemaResult<Vec<Value>>>()?;
        return Ok(json!({"type": "array", "items": items}));
    }
    let items = array.rest.as_ref().map_or_else(|| Ok(json!({})), |rest| node(rest, prefix))?;
    let most = array.most.map(|most| if array.least == 0 { most.min(MAX_ITEMS) } else { most });
    let mut out = json!({"type": "array", "items": items, "minItems": array.least});
    if let (Some(most), Value::Object(out)) = (most, &mut out) {
        out.insert("maxItems".to_owned(), json!(most));
    }
    Ok(out)
}

fn text(text: &TextNode) -> SchemaResult<Value> {
    match text {
        TextNode::Format(format) => Ok(json!({"type": "string", "format": format})),
        TextNode::Pattern(PatternNode::Repeat(item, least, most)) if **item == PatternNode::Class(CharSet::any()) => {
            let mut out = json!({"type": "string", "minLength": least});
            if let (Some(most), Value::Object(out)) = (most, &mut out) {
                out.insert("maxLength".to_owned(), json!(most));
            }
            Ok(out)
        }
        TextNode::Pattern(node) => {
            let mut out = String::from("^");
            write(node, &mut out)?;
            Ok(json!({"type": "string", "pattern": out + "$"}))
        }
    }
}

/// Writes a pattern in the converter's notation, as a JSON string spells its characters.
fn write(node: &PatternNode, out: &mut String) -> SchemaResult<()> {
    if out.len() > MAX_LEN {
        return unenforceable("a long pattern");
    }
    match node {
        PatternNode::Class(set) => write_set(set, out)?,
        PatternNode::Seq(nodes) => {
            for node in nodes {
                write_item(node, matches!(node, PatternNode::Alt(_)), out)?;
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
            write_item(item, !matches!(**item, PatternNode::Class(_)), out)?;
            out.push_str(&match (least, most) {
                (least, None) => format!("{{{least},}}"),
                (least, Some(most)) => format!("{{{least},{most}}}"),
            });
        }
        PatternNode::Start | PatternNode::End => {}
    }
    Ok(())
}

fn write_item(node: &PatternNode, is_group: bool, out: &mut String) -> SchemaResult<()> {
    out.push_str(if is_group { "(" } else { "" });
    write(node, out)?;
    out.push_str(if is_group { ")" } else { "" });
    Ok(())
}

fn write_set(set: &CharSet, out: &mut String) -> SchemaResult<()> {
    let class = |ranges: &[(u32, u32)]| {
        let ranges = ranges.iter().map(|(first, last)| format!("\\U{first:08X}-\\U{last:08X}"));
        format!("[{}]", ranges.collect::<String>())
    };
    let (plain, letters) = crate::spelling::json_spellings(set);
    let mut spellings = Vec::new();
    if !plain.is_empty() {
        spellings.push(class(plain.ranges()));
    }
    if !letters.is_empty() {
        spellings.push(class(&[(0x5C, 0x5C)]) + &class(&letters));
    }
    match spellings.as_slice() {
        [] => return unenforceable("a pattern of control characters"),
        [only] if !plain.is_empty() => out.push_str(only),
        _ => out.push_str(&format!("({})", spellings.join("|"))),
    }
    Ok(())
}
