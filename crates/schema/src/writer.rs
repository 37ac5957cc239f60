//! Writes the rules of a schema's tree.

use std::collections::VecDeque;

use serde_json::Value;

use crate::classes::{class, class_without};
use crate::formats;
use crate::pattern::PatternNode;
use crate::rules::{Rules, literal};
use crate::sequence::ItemSequence;
use crate::spelling::Spelling;
use crate::tree::{AdditionalNode, ArrayNode, ObjectNode, SchemaNode, SchemaTree, TextNode};

/// Space between the parts of a JSON text: none, a space, or a line break with indentation. It is bounded, because models tend to repeat it.
const SPACE: &str = r#"| " " | "\n"{1,2} [ \t]{0,20}"#;
/// The names of the listed properties, as a tree of characters, have at most so many nodes; with more there are no additional properties.
const MAX_NAME_NODES: usize = 8192;
/// The maximum length of all rules in bytes, that of a grammar.
const MAX_SIZE: usize = 1 << 20;

/// Writes rules for the values of a tree.
struct SchemaWriter<'w> {
    rules: &'w mut Rules,
    options: &'w WriterOptions<'w>,
    /// The names of the definitions' rules.
    names: Vec<Option<String>>,
    /// Definitions that are mentioned and not yet written, with hints for their names.
    todo: VecDeque<(usize, String)>,
    dropped: &'w mut Vec<(&'static str, String)>,
}

/// How a tree is written.
pub(crate) struct WriterOptions<'w> {
    /// The ways to write strings, JSON's first. Each string is written in one of them.
    pub(crate) spellings: &'w [Spelling],
    pub(crate) any_order: bool,
    /// Keywords that cannot be enforced are added to `dropped`. Otherwise they are an error.
    pub(crate) drops: bool,
}

/// Adds the rules for the JSON text of a node's values, and returns the name of the first. Adds dropped keywords, with the reasons, to
/// `dropped`. The error is a message without a location.
pub(crate) fn write(
    tree: &SchemaTree,
    node: &SchemaNode,
    options: &WriterOptions<'_>,
    rules: &mut Rules,
    dropped: &mut Vec<(&'static str, String)>,
) -> Result<String, String> {
    let names = vec![None; tree.definitions.len()];
    let mut writer = SchemaWriter { rules, options, names, todo: VecDeque::new(), dropped };
    let root = writer.node(node, "value")?;
    while let Some((id, hint)) = writer.todo.pop_front() {
        let (Some(node), Some(Some(name))) = (tree.definitions.get(id), writer.names.get(id).cloned()) else {
            continue;
        };
        let body = writer.node(node, &hint)?;
        writer.rules.define(&name, body);
    }
    Ok(root)
}

impl SchemaWriter<'_> {
    /// Adds the rules of a node, and returns the name of the first.
    fn node(&mut self, node: &SchemaNode, hint: &str) -> Result<String, String> {
        if self.rules.size() > MAX_SIZE {
            return Err(format!("the grammar takes more than {MAX_SIZE} bytes"));
        }
        Ok(match node {
            SchemaNode::Any => self.any()?,
            SchemaNode::Definition(id) => self.definition(*id, hint),
            SchemaNode::Union(nodes) => {
                let mut parts = Vec::new();
                for node in nodes {
                    let part = self.node(node, hint)?;
                    if !parts.contains(&part) {
                        parts.push(part);
                    }
                }
                if parts.len() == 1 { parts.swap_remove(0) } else { self.rules.add(hint, parts.join(" | ")) }
            }
            SchemaNode::Values(values) => self.values(values, hint),
            SchemaNode::Object(object) => self.object(object, hint)?,
            SchemaNode::Array(array) => self.array(array, hint)?,
            SchemaNode::Text(text) => self.text(text, hint)?,
            SchemaNode::Integer(range) => self.rules.add("integer", range.body().ok_or("no integer is valid")?),
            SchemaNode::Number(range) => self.rules.add("number", range.body().ok_or("no number is valid")?),
            SchemaNode::Boolean => self.values(&[true.into(), false.into()], "boolean"),
            SchemaNode::Null => self.values(&[Value::Null], "null"),
        })
    }

    fn drop_keyword(&mut self, keyword: &'static str, why: String) -> Result<(), String> {
        if !self.options.drops {
            return Err(why);
        }
        if !self.dropped.contains(&(keyword, why.clone())) {
            self.dropped.push((keyword, why));
        }
        Ok(())
    }

    /// The rule of a string in quotes. `content`: what stands between them, for each spelling.
    fn quoted(
        &mut self,
        hint: &str,
        mut content: impl FnMut(&mut Self, &Spelling) -> Result<String, String>,
    ) -> Result<String, String> {
        let mut forms = Vec::new();
        for spelling in self.options.spellings {
            forms.push(spelling.in_quotes(&content(self, spelling)?));
        }
        Ok(self.rules.add(hint, forms.join(" | ")))
    }

    /// The rule of a string in quotes.
    fn text(&mut self, text: &TextNode, hint: &str) -> Result<String, String> {
        self.quoted(hint, |this, spelling| this.content(text, spelling))
    }

    /// The GBNF for the content of a string.
    fn content(&mut self, text: &TextNode, spelling: &Spelling) -> Result<String, String> {
        match text {
            TextNode::Format(format) => Ok(formats::rule(format, self.rules)),
            TextNode::Except(texts) => match name_tree(&texts.iter().map(String::as_str).collect::<Vec<_>>()) {
                Some(tree) => Ok(self.other_names(&tree, spelling)),
                None => {
                    self.drop_keyword("not", "not excludes too many texts for a grammar".to_owned())?;
                    Ok(spelling.any_text(self.rules, false))
                }
            },
            TextNode::Pattern(node) => {
                let body = match spelling.pattern(node, self.rules) {
                    Ok(body) => body,
                    Err(part) => {
                        self.drop_keyword(
                            "pattern",
                            format!("the pattern has {part}, which a grammar cannot enforce"),
                        )?;
                        spelling.any_text(self.rules, false)
                    }
                };
                Ok(if matches!(node, PatternNode::Repeat(..)) && !body.contains('|') {
                    body
                } else {
                    self.rules.add("text", body)
                })
            }
        }
    }

    fn space(&mut self) -> String {
        self.rules.add("space", SPACE)
    }

    fn string(&mut self) -> Result<String, String> {
        self.quoted("string", |this, spelling| Ok(spelling.any_text(this.rules, false)))
    }

    /// The rule for any value.
    fn any(&mut self) -> Result<String, String> {
        let (value, is_new) = self.rules.shared(&format!("value {:?}", self.options.spellings), "value");
        if is_new {
            let (space, string) = (self.space(), self.string()?);
            let number = self.rules.add("number", crate::numbers::NumberRange::default().body().unwrap_or_default());
            let pair = self.rules.add("pair", format!("{string} {space} \":\" {space} {value}"));
            let object = format!("\"{{\" {space} ({pair} (\",\" {space} {pair})*)? {space} \"}}\"");
            let array = format!("\"[\" {space} ({value} (\",\" {space} {value})*)? {space} \"]\"");
            let (object, array) = (self.rules.add("object", object), self.rules.add("array", array));
            let constants = self.values(&[true.into(), false.into(), Value::Null], "constant");
            let body = format!("{object} | {array} | {string} | {number} | {constants}");
            self.rules.define(&value, body);
        }
        Ok(value)
    }

    /// The rule of a definition, which is written later.
    fn definition(&mut self, id: usize, hint: &str) -> String {
        if let Some(Some(name)) = self.names.get(id) {
            return name.clone();
        }
        let name = self.rules.declare(hint);
        if let Some(place) = self.names.get_mut(id) {
            *place = Some(name.clone());
        }
        self.todo.push_back((id, hint.to_owned()));
        name
    }

    fn values(&mut self, values: &[Value], hint: &str) -> String {
        let forms: Vec<String> = values.iter().flat_map(|value| self.literals(value)).collect();
        self.rules.add(hint, forms.join(" | "))
    }

    /// A value in each spelling.
    fn literals(&self, value: &Value) -> Vec<String> {
        let mut forms: Vec<String> =
            self.options.spellings.iter().map(|spelling| literal(&spelling.value(value))).collect();
        forms.dedup();
        forms
    }

    fn object(&mut self, object: &ObjectNode, hint: &str) -> Result<String, String> {
        let space = self.space();
        let mut items = Vec::new();
        for property in &object.properties {
            let name = match self.literals(&Value::from(property.name.as_str())).as_slice() {
                [name] => name.clone(),
                names => format!("({})", names.join(" | ")),
            };
            let value = self.node(&property.value, &property.name)?;
            let pair = format!("{name} {space} \":\" {space} {value}");
            items.push((self.rules.add(&property.name, pair), property.is_required));
        }
        let further = match &object.additional {
            Some(additional) => self.additional(object, additional, hint)?,
            None => None,
        };
        let mut sequence = ItemSequence {
            items: &items,
            separator: &format!("\",\" {space}"),
            further: further.as_deref(),
            least: object.least,
            most: object.most,
            any_order: self.options.any_order,
        };
        let members = match sequence.add(self.rules, hint) {
            Some(members) => members,
            None => {
                let why = "minProperties and maxProperties cannot be enforced by a grammar";
                self.drop_keyword("maxProperties", why.to_owned())?;
                (sequence.least, sequence.most) = (0, None);
                sequence.add(self.rules, hint).ok_or(why)?
            }
        };
        Ok(self.rules.add(hint, format!("\"{{\" {space} {members} {space} \"}}\"")))
    }

    /// The rule of an additional property. `None`: there are none, because too many names are taken.
    fn additional(
        &mut self,
        object: &ObjectNode,
        additional: &AdditionalNode,
        hint: &str,
    ) -> Result<Option<String>, String> {
        let listed = object.properties.iter().map(|property| &property.name);
        let names: Vec<&str> = listed.chain(&additional.excluded).map(String::as_str).collect();
        let name = match &additional.names {
            Some(text) => self.text(text, "name")?,
            None if names.is_empty() => self.string()?,
            None => match name_tree(&names) {
                Some(tree) => self.quoted("name", |this, spelling| Ok(this.other_names(&tree, spelling)))?,
                None => return Ok(None),
            },
        };
        let value = self.node(&additional.value, hint)?;
        let space = self.space();
        Ok(Some(self.rules.add("pair", format!("{name} {space} \":\" {space} {value}"))))
    }

    /// The content of all strings except the names in a tree.
    fn other_names(&mut self, nodes: &[NameNode], spelling: &Spelling) -> String {
        let any = spelling.any_text(self.rules, false);
        let rest = self.rules.add("text", any);
        // Leaves stand behind their parents, so their rules are written first.
        let mut written: Vec<String> = vec![String::new(); nodes.len()];
        for (id, node) in nodes.iter().enumerate().rev() {
            let body = spelling.beside(&node.next, &written, &rest, !node.is_name);
            let name = self.rules.add("name", body);
            if let Some(place) = written.get_mut(id) {
                *place = name;
            }
        }
        written.into_iter().next().unwrap_or_default()
    }

    fn array(&mut self, array: &ArrayNode, hint: &str) -> Result<String, String> {
        let space = self.space();
        let separator = format!("\",\" {space}");
        let most = array.most.unwrap_or(u64::MAX);
        // The items that may follow those before them, built from the end.
        let len = array.first.len() as u64;
        let mut after = match &array.rest {
            Some(rest) if most > len => {
                let item = self.node(rest, hint)?;
                let (least, spare) = (array.least.saturating_sub(len), array.most.map(|most| most - len));
                self.items(&item, &separator, least, spare, len == 0)
            }
            _ => "\"\"".to_owned(),
        };
        for (index, item) in array.first.iter().enumerate().rev() {
            let item = self.node(item, hint)?;
            let count = index as u64;
            if count >= most {
                after = "\"\"".to_owned();
                continue;
            }
            let rest = self.rules.add("items", after);
            after = if index == 0 { format!("{item} {rest}") } else { format!("{separator} {item} {rest}") };
            if count >= array.least {
                after.push_str(" | \"\"");
            }
        }
        let items = self.rules.add("items", after);
        Ok(self.rules.add(hint, format!("\"[\" {space} {items} {space} \"]\"")))
    }

    /// GBNF for at least so many items, and at most so many. `is_first`: nothing stands before them.
    fn items(&mut self, item: &str, separator: &str, least: u64, most: Option<u64>, is_first: bool) -> String {
        let more = self.rules.add("item", format!("{separator} {item}"));
        let times = |least: u64, most: Option<u64>| match (least, most) {
            (_, Some(0)) => String::new(),
            (least, Some(most)) => format!(" {more}{{{least},{most}}}"),
            (0, None) => format!(" {more}*"),
            (least, None) => format!(" {more}{{{least},}}"),
        };
        match (is_first, most) {
            (_, Some(0)) => "\"\"".to_owned(),
            (false, most) => times(least, most).trim_start().to_owned(),
            (true, most) => {
                let rest = times(least.saturating_sub(1), most.map(|most| most - 1));
                format!("{item}{rest}{}", if least == 0 { " | \"\"" } else { "" })
            }
        }
    }
}

/// A node of the tree of names.
#[derive(Default)]
struct NameNode {
    next: Vec<(char, usize)>,
    /// A name ends here.
    is_name: bool,
}

/// Names as a tree of characters. `None`: it would be too large.
fn name_tree(names: &[&str]) -> Option<Vec<NameNode>> {
    let mut nodes = vec![NameNode::default()];
    for name in names {
        let mut at = 0;
        for char in name.chars() {
            let new = nodes.len();
            let node = nodes.get_mut(at)?;
            at = match node.next.iter().find(|(other, _)| *other == char) {
                Some((_, next)) => *next,
                None => {
                    node.next.push((char, new));
                    nodes.push(NameNode::default());
                    new
                }
            };
            if nodes.len() > MAX_NAME_NODES {
                return None;
            }
        }
        nodes.get_mut(at)?.is_name = true;
    }
    Some(nodes)
}

impl Spelling {
    /// GBNF for the rest of a string that leaves a tree of names. `next`: the characters that stay in it, with their nodes, whose
    /// rules are in `written`. `rest`: the rule for any text. A character that stays in the tree has no other spelling.
    fn beside(&self, next: &[(char, usize)], written: &[String], rest: &str, may_end: bool) -> String {
        let mut parts = Vec::new();
        for (char, node) in next {
            let spelled = self.exactly(&char.to_string()).unwrap_or_default();
            parts.push(format!("{spelled} {}", written.get(*node).map_or("", String::as_str)));
        }
        let taken: Vec<(u32, u32)> = next.iter().map(|(char, _)| (u32::from(*char), u32::from(*char))).collect();
        let (excluded, letters) = self.spellings_without(&taken);
        parts.push(format!("{} {rest}", class_without(&excluded)));
        if !letters.is_empty() {
            parts.push(format!("[\\\\] {} {rest}", class(&letters)));
        }
        if may_end {
            parts.push("\"\"".to_owned());
        }
        parts.join(" | ")
    }
}
