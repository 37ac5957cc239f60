//! Writes nodes for the values of a schema, in a notation.

use std::collections::VecDeque;

use foredraft_base::error::Result;
use foredraft_base::work::Work;
use foredraft_grammar::tree::{Each, Mark, NodeId, TreeBuilder};
use serde_json::Value;

use crate::document::{SchemaError, error_at};
use crate::numbers::NumberRange;
use crate::options::{CompileOptions, CompiledSchema, Notation, Unenforced};
use crate::pattern;
use crate::schema::Schema;
use crate::spelling::{Script, Spelling};
use crate::tree::{ObjectNode, SchemaNode, SchemaTree, TextNode};

/// The token around strings in Gemma's notation.
pub const GEMMA_QUOTE: &str = "<|\"|>";
/// Texts that no key of Gemma's has.
const GEMMA_STRUCTURE: [&str; 11] = [":", ",", "{", "}", "[", "]", "\"", "<", " ", "\n", "\t"];
/// The most indentation behind a line break. It is bounded, because models tend to repeat it.
const MAX_INDENT: u32 = 20;
/// A tree of this size has no room for more schemas.
const MAX_SIZE: usize = foredraft_grammar::tree::MAX_SIZE / 2;
/// Texts that share more beginnings than this are alternatives beside each other.
const MAX_SHARED: usize = 64;
/// Characters that values have outside of strings, or in escapes. No delimiter is recognized by them.
const STRUCTURE: &str = " \t\r\n{}[]:,\"\\/+-.0123456789abcdefABCDEFlnrstu";
/// Further characters that Python has outside of strings, or in escapes.
const PYTHON_WORDS: &str = "'TFNoxU";

/// Writes values of schemas in one notation into a tree.
pub struct Values<'t> {
    pub(crate) tree: &'t TreeBuilder,
    notation: Notation,
    options: CompileOptions,
    /// The ways to write a string: the quotes, and how its content is spelled.
    strings: Vec<(&'static str, Spelling)>,
    unenforced: Vec<Unenforced>,
}

/// The values of one schema while they are written.
struct SchemaWriter<'w, 't, 's> {
    values: &'w mut Values<'t>,
    schema: &'s Schema,
    /// The rules of definitions that were mentioned.
    rules: Vec<Option<NodeId>>,
    todo: VecDeque<usize>,
    /// The size of the tree that is counted as work.
    counted: usize,
}

impl<'t> Values<'t> {
    /// A writer into `tree`. In other notations than JSON's, marks and texts say what JSON has in place of each part. JSON is as it stands, so
    /// it has no marks.
    pub fn new(tree: &'t TreeBuilder, notation: Notation, options: CompileOptions) -> Values<'t> {
        Values::between(tree, notation, options, &[])
    }

    /// A writer of values in which the delimiters do not occur, as far as [`Values::avoids`] says.
    pub(crate) fn between(
        tree: &'t TreeBuilder,
        notation: Notation,
        options: CompileOptions,
        delimiters: &[&str],
    ) -> Values<'t> {
        // The rest from the first character on that occurs only in strings. To avoid the rest is to avoid the delimiter.
        let rests: Vec<&str> = delimiters.iter().map(|text| rest_in_strings(text, notation)).collect();
        let spelling = |quote, script| (quote, Spelling::new(script, &rests));
        let strings = match notation {
            Notation::Json => vec![spelling("\"", Script::Json)],
            Notation::Python => [("'", '\''), ("\"", '"')]
                .map(|(text, quote)| spelling(text, Script::Python { quote, is_lenient: options.is_lenient }))
                .to_vec(),
            Notation::Gemma => vec![(GEMMA_QUOTE, Spelling::new(Script::Raw, &[GEMMA_QUOTE]))],
        };
        Values { tree, notation, options, strings, unenforced: Vec::new() }
    }

    /// The keywords that were dropped.
    #[must_use]
    pub fn into_unenforced(self) -> Vec<Unenforced> {
        self.unenforced
    }

    /// The values that are valid under a schema, without space around them. Of a lenient writer: any values.
    ///
    /// # Errors
    /// `invalid_request`, with the location: it is not a schema, or nothing satisfies it; without
    /// [`CompileOptions::drop_unenforceable`]: a grammar cannot enforce it. `cancelled`: the schema's work was interrupted.
    pub fn value(&mut self, schema: &Schema) -> Result<NodeId> {
        if self.options.is_lenient {
            return Ok(self.any());
        }
        let (tree, unenforced) = schema.read(&self.options)?;
        self.note(unenforced);
        self.write(schema, &tree, &tree.root)
    }

    /// The objects that are valid under a schema, as [`Values::value`].
    ///
    /// # Errors
    /// As [`Values::value`].
    pub fn object(&mut self, schema: &Schema) -> Result<NodeId> {
        if self.options.is_lenient {
            return Ok(self.any_object());
        }
        let (tree, unenforced) = schema.read(&self.options)?;
        self.note(unenforced);
        let root = match &tree.root {
            SchemaNode::Definition(id) => tree.definitions.get(*id).unwrap_or(&tree.root),
            root => root,
        };
        match root {
            SchemaNode::Any => self.write(schema, &tree, &SchemaNode::any_object()),
            _ => self.write(schema, &tree, &tree.root),
        }
    }

    pub(crate) fn note(&mut self, unenforced: Vec<Unenforced>) {
        for one in unenforced {
            if !self.unenforced.contains(&one) {
                self.unenforced.push(one);
            }
        }
    }

    /// The values of a node of a schema's tree.
    pub(crate) fn write(&mut self, schema: &Schema, tree: &SchemaTree, node: &SchemaNode) -> Result<NodeId> {
        let rules = vec![None; tree.definitions.len()];
        let counted = self.tree.size();
        let mut writer = SchemaWriter { values: self, schema, rules, todo: VecDeque::new(), counted };
        let root = writer.node(node)?;
        while let Some(id) = writer.todo.pop_front() {
            if let (Some(node), Some(Some(rule))) = (tree.definitions.get(id), writer.rules.get(id).copied()) {
                let body = writer.node(node)?;
                writer.values.tree.define(rule, body);
            }
        }
        // Where the work ended, texts were left out.
        schema.count_steps(1)?;
        Ok(root)
    }

    /// Whether the notation can write every value without a delimiter: the delimiter has a character that it has only in strings.
    pub(crate) fn avoids(delimiter: &str, notation: Notation) -> bool {
        delimiter.is_empty() || !rest_in_strings(delimiter, notation).is_empty()
    }

    /// Space between the parts of a value.
    fn space(&self) -> NodeId {
        if self.options.is_lenient {
            return self.tree.repeat(self.tree.one_of(" \t\r\n"), 0, None);
        }
        if self.notation == Notation::Gemma { self.tree.empty() } else { space(self.tree) }
    }

    /// A text of the notation that JSON has, too.
    fn punctuation(&self, text: &str, json: &str) -> NodeId {
        match self.notation {
            Notation::Json => self.tree.text(text),
            _ => self.tree.as_text(text, json),
        }
    }

    /// A node whose text is JSON as it stands.
    pub(crate) fn verbatim(&self, node: NodeId) -> NodeId {
        if self.notation == Notation::Json { node } else { self.tree.mark(Mark::Verbatim, node) }
    }

    /// A string, by its content in each spelling.
    fn string(&self, mut content: impl FnMut(&Spelling) -> NodeId) -> NodeId {
        let mut forms = Vec::new();
        for (quote, spelling) in &self.strings {
            let (content, quote) = (content(spelling), self.punctuation(quote, "\""));
            forms.push(self.tree.seq(&[quote, content, quote]));
        }
        self.tree.alt(&forms)
    }

    fn any_string(&self) -> NodeId {
        self.string(|spelling| spelling.any_text(self.tree, false))
    }

    /// Any value.
    pub fn any(&self) -> NodeId {
        let name = format!("any {:?} {} {:?}", self.notation, self.options.is_lenient, self.strings);
        let (rule, is_new) = self.tree.rule(&name);
        if is_new {
            self.tree.define(rule, self.tree.alt(&[self.any_but_strings(), self.any_string()]));
        }
        rule
    }

    /// Any value but strings.
    pub(crate) fn any_but_strings(&self) -> NodeId {
        let any = self.any();
        let (object, array) = (self.any_object(), self.items(&[], Some(any), 0, None));
        let number = self.pattern(NumberRange::default().pattern(), &Work::unlimited());
        let constants = self.constants(&[true.into(), false.into(), Value::Null]);
        self.tree.alt(&[object, array, number, constants])
    }

    /// Any object.
    pub fn any_object(&self) -> NodeId {
        let pair = self.pair(self.any_key(), self.any());
        self.braced(Each { further: Some(pair), ..self.no_items() })
    }

    /// A name that is not listed, by its content in each spelling.
    fn other_key(&self, mut content: impl FnMut(&Spelling) -> NodeId) -> NodeId {
        if self.notation != Notation::Gemma {
            return self.string(content);
        }
        // Gemma's keys are bare.
        let (name, quote) = (content(&Spelling::new(Script::Raw, &GEMMA_STRUCTURE)), self.tree.emit("\""));
        self.tree.seq(&[quote, name, quote])
    }

    fn any_key(&self) -> NodeId {
        self.other_key(|spelling| spelling.any_text(self.tree, false))
    }

    /// The texts of a pattern, as JSON as it stands. `None`: none.
    fn pattern(&self, pattern: Option<String>, work: &Work) -> NodeId {
        let json = Spelling::new(Script::Json, &[]);
        let node = pattern.and_then(|pattern| json.pattern(&pattern::own(&pattern, work), work, self.tree).ok());
        self.verbatim(node.unwrap_or_else(|| self.tree.class(&[])))
    }

    /// One of these values.
    fn constants(&self, values: &[Value]) -> NodeId {
        let mut texts: Vec<(String, Option<String>)> = Vec::new();
        let mut forms = Vec::new();
        for value in values {
            match value {
                Value::Array(items) => {
                    let (separator, mut parts) = (self.separator(), Vec::new());
                    for (index, item) in items.iter().enumerate() {
                        parts.extend((index > 0).then_some(separator));
                        parts.push(self.constants(std::slice::from_ref(item)));
                    }
                    forms.push(self.enclosed("[", self.tree.seq(&parts), "]"));
                    continue;
                }
                Value::Object(map) => {
                    let mut items = Vec::new();
                    for (name, value) in map {
                        let value = self.constants(std::slice::from_ref(value));
                        items.push((self.pair(self.key(name), value), true));
                    }
                    forms.push(self.braced(Each { items, ..self.no_items() }));
                    continue;
                }
                _ => {}
            }
            let json = value.to_string();
            for (quote, spelling) in &self.strings {
                let mut text = spell(value, self.notation, quote, spelling);
                if self.notation == Notation::Json {
                    text = spelling.without_delimiters(text);
                }
                let emitted = (self.notation != Notation::Json).then(|| json.clone());
                texts.push((text, emitted));
            }
            // Models write JSON, too.
            if self.notation == Notation::Python {
                let text = self.strings.first().map(|(_, spelling)| spelling.without_delimiters(json.clone()));
                texts.push((text.unwrap_or_default(), Some(json)));
            }
        }
        texts.sort_unstable();
        texts.dedup();
        if !texts.is_empty() {
            forms.insert(0, one_of(&texts, 0, 0, self.tree));
        }
        self.tree.alt(&forms)
    }

    /// A name of an object, and the space and punctuation behind it.
    fn key(&self, name: &str) -> NodeId {
        match self.notation {
            Notation::Gemma => self.tree.as_text(name, &Value::from(name).to_string()),
            _ => self.constants(&[Value::from(name)]),
        }
    }

    fn pair(&self, key: NodeId, value: NodeId) -> NodeId {
        let space = self.space();
        self.tree.seq(&[key, space, self.punctuation(":", ": "), space, value])
    }

    fn separator(&self) -> NodeId {
        let space = self.space();
        let before = if self.options.is_lenient { space } else { self.tree.empty() };
        self.tree.seq(&[before, self.punctuation(",", ", "), space])
    }

    fn no_items(&self) -> Each {
        let separator = self.separator();
        Each { items: Vec::new(), separator, further: None, least: 0, most: None, any_order: self.options.any_order }
    }

    /// An object with these items.
    fn braced(&self, each: Each) -> NodeId {
        let mut orders = vec![each.clone()];
        if !each.any_order {
            let (mut first, optional): (Vec<_>, Vec<_>) = each.items.iter().copied().partition(|item| item.1);
            first.extend(optional);
            if first != each.items {
                orders.insert(0, Each { items: first, ..each });
            }
        }
        let orders: Vec<NodeId> = orders.into_iter().map(|each| self.tree.each(each)).collect();
        self.enclosed("{", self.tree.alt(&orders), "}")
    }

    fn enclosed(&self, open: &str, items: NodeId, close: &str) -> NodeId {
        let space = self.space();
        self.tree.seq(&[self.punctuation(open, open), space, items, space, self.punctuation(close, close)])
    }

    /// An array whose first items are these, and then at least and at most so many items in all.
    fn items(&self, first: &[NodeId], rest: Option<NodeId>, least: u64, most: Option<u64>) -> NodeId {
        let separator = self.separator();
        let tree = self.tree;
        let (len, count) = (first.len() as u64, |count: u64| u32::try_from(count).unwrap_or(u32::MAX));
        let empty = tree.empty();
        let most_in_all = most.unwrap_or(u64::MAX);
        // The items that may follow those before them, built from the end.
        let mut after = match rest.filter(|_| most_in_all > len) {
            Some(item) => {
                let (least, spare) = (least.saturating_sub(len), most.map(|most| most - len));
                let more = tree.seq(&[separator, item]);
                if len > 0 {
                    tree.repeat(more, count(least), spare.map(count))
                } else {
                    let more = tree.repeat(more, count(least.saturating_sub(1)), spare.map(|most| count(most - 1)));
                    let items = tree.seq(&[item, more]);
                    if least == 0 { tree.opt(items) } else { items }
                }
            }
            None => empty,
        };
        for (index, item) in first.iter().enumerate().rev() {
            if index as u64 >= most_in_all {
                after = empty;
                continue;
            }
            let before = if index == 0 { empty } else { separator };
            let items = tree.seq(&[before, *item, after]);
            after = if index as u64 >= least { tree.opt(items) } else { items };
        }
        self.enclosed("[", after, "]")
    }
}

/// Space between the parts of a JSON text, as models write it: none, a space, or a line break with indentation.
pub fn space(tree: &TreeBuilder) -> NodeId {
    let lines = tree.repeat(tree.text("\n"), 1, Some(2));
    let indent = tree.repeat(tree.one_of(" \t"), 0, Some(MAX_INDENT));
    tree.alt(&[tree.empty(), tree.text(" "), tree.seq(&[lines, indent])])
}

impl Schema {
    /// Adds nodes for the JSON text of valid values.
    ///
    /// # Errors
    /// As [`Values::value`].
    pub fn compile(&self, options: &CompileOptions, tree: &TreeBuilder) -> Result<CompiledSchema> {
        let mut values = Values::new(tree, Notation::Json, *options);
        let node = values.value(self)?;
        Ok(CompiledSchema { node, unenforced: values.into_unenforced() })
    }
}

impl SchemaWriter<'_, '_, '_> {
    fn node(&mut self, node: &SchemaNode) -> Result<NodeId> {
        if self.values.tree.size() > MAX_SIZE {
            self.drop_keyword("schema", "the grammar has no room for more")?;
            return Ok(self.values.any());
        }
        let size = self.values.tree.size();
        let grown = size - std::mem::replace(&mut self.counted, size).min(size);
        self.schema.count_steps(1 + grown)?;
        Ok(match node {
            SchemaNode::Any => self.values.any(),
            SchemaNode::Definition(id) => self.definition(*id),
            SchemaNode::Union(nodes) => {
                let mut forms = Vec::new();
                for node in nodes {
                    let form = self.node(node)?;
                    if !forms.contains(&form) {
                        forms.push(form);
                    }
                }
                self.values.tree.alt(&forms)
            }
            SchemaNode::Values(values) => {
                let size: usize = values.iter().map(|value| value.to_string().len()).sum();
                if self.values.tree.size() + size * self.values.strings.len() > MAX_SIZE {
                    self.drop_keyword("enum", "the grammar has no room for these values")?;
                    return Ok(self.values.any());
                }
                self.values.constants(values)
            }
            SchemaNode::Object(object) => self.object(object)?,
            SchemaNode::Array(array) if array.is_unique => {
                let values = match &array.rest {
                    Some(SchemaNode::Values(values)) => values.clone(),
                    Some(SchemaNode::Boolean) => vec![true.into(), false.into()],
                    _ => vec![Value::Null],
                };
                let count = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
                let items = values.iter().map(|value| (self.values.constants(std::slice::from_ref(value)), false));
                let items = items.collect();
                let (least, most) = (count(array.least), array.most.map(count));
                let each = Each { items, least, most, any_order: true, ..self.values.no_items() };
                self.values.enclosed("[", self.values.tree.each(each), "]")
            }
            SchemaNode::Array(array) => {
                let first = array.first.iter().map(|item| self.node(item)).collect::<Result<Vec<_>>>()?;
                let rest = array.rest.as_ref().map(|item| self.node(item)).transpose()?;
                self.values.items(&first, rest, array.least, array.most)
            }
            SchemaNode::Text(text) => self.text(text, false)?,
            SchemaNode::Number(range) => self.values.pattern(range.pattern(), &self.schema.work),
            SchemaNode::Multiples(set) => {
                let number = Spelling::new(Script::Json, &[]).texts(set, &self.schema.work, self.values.tree);
                self.values.verbatim(number.unwrap_or_else(|_| self.values.tree.class(&[])))
            }
            SchemaNode::Boolean => self.values.constants(&[true.into(), false.into()]),
            SchemaNode::Null => self.values.constants(&[Value::Null]),
        })
    }

    /// The rule of a definition, which is written later.
    fn definition(&mut self, id: usize) -> NodeId {
        if let Some(Some(rule)) = self.rules.get(id) {
            return *rule;
        }
        let rule = self.values.tree.declare();
        if let Some(place) = self.rules.get_mut(id) {
            *place = Some(rule);
        }
        self.todo.push_back(id);
        rule
    }

    fn drop_keyword(&mut self, keyword: &'static str, why: &str) -> Result<()> {
        if !self.values.options.drop_unenforceable {
            return error_at(&self.schema.at, why).map_err(SchemaError::into_error);
        }
        self.values.note(vec![Unenforced {
            location: self.schema.at.clone(),
            keyword: keyword.to_owned(),
            reason: why.to_owned(),
        }]);
        Ok(())
    }

    /// A string, or a name of an object.
    fn text(&mut self, text: &TextNode, is_key: bool) -> Result<NodeId> {
        let mut fault = None;
        let (work, tree) = (&self.schema.work, self.values.tree);
        let content = |spelling: &Spelling| {
            content(text, spelling, work, tree).unwrap_or_else(|why| {
                fault = Some(why);
                spelling.any_text(tree, false)
            })
        };
        let node = if is_key { self.values.other_key(content) } else { self.values.string(content) };
        match fault {
            Some(why) => self.drop_keyword("pattern", &why).map(|()| node),
            None => Ok(node),
        }
    }

    fn object(&mut self, object: &ObjectNode) -> Result<NodeId> {
        let mut items = Vec::new();
        for property in &object.properties {
            let (key, value) = (self.values.key(&property.name), self.node(&property.value)?);
            items.push((self.values.pair(key, value), property.is_required));
        }
        let mut further = Vec::new();
        for additional in &object.additional {
            let (key, value) = (self.text(&additional.names, true)?, self.node(&additional.value)?);
            further.push(self.values.pair(key, value));
        }
        let further = (!further.is_empty()).then(|| self.values.tree.alt(&further));
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let (least, most) = (count(object.least), object.most.map(count));
        Ok(self.values.braced(Each { items, further, least, most, ..self.values.no_items() }))
    }
}

/// The content of a string. The error says why it cannot be written.
pub(crate) fn content(
    text: &TextNode,
    spelling: &Spelling,
    work: &Work,
    tree: &TreeBuilder,
) -> std::result::Result<NodeId, String> {
    let written = match text {
        TextNode::Pattern(node) => spelling.pattern(node, work, tree),
        TextNode::Set(set) => spelling.texts(set, work, tree),
    };
    written.map_err(|part| format!("the pattern has {part}, which a grammar cannot enforce"))
}

/// A value that is no array or object, in a notation.
fn spell(value: &Value, notation: Notation, quote: &str, spelling: &Spelling) -> String {
    match value {
        Value::Null if notation == Notation::Python => "None".to_owned(),
        Value::Bool(true) if notation == Notation::Python => "True".to_owned(),
        Value::Bool(false) if notation == Notation::Python => "False".to_owned(),
        Value::String(text) if notation != Notation::Json => {
            format!("{quote}{}{quote}", spelling.without_delimiters(spelling.python(text)))
        }
        other => other.to_string(),
    }
}

/// One of these texts, which are sorted and share their first bytes, with what JSON has for it. Common beginnings are written once.
pub(crate) fn one_of(texts: &[(String, Option<String>)], n_shared: usize, depth: usize, tree: &TreeBuilder) -> NodeId {
    let end = |text: &(String, Option<String>), from: usize| {
        let rest = tree.text(text.0.as_bytes().get(from..).unwrap_or_default());
        text.1.as_ref().map_or(rest, |json| tree.seq(&[rest, tree.emit(json)]))
    };
    let (Some(first), Some(last)) = (texts.first(), texts.last()) else { return tree.class(&[]) };
    if texts.len() == 1 || depth > MAX_SHARED {
        let forms: Vec<NodeId> = texts.iter().map(|text| end(text, n_shared)).collect();
        return tree.alt(&forms);
    }
    let common = first.0.bytes().zip(last.0.bytes()).take_while(|(one, other)| one == other).count();
    let mut forms = Vec::new();
    let next = |text: &(String, Option<String>)| text.0.as_bytes().get(common).copied();
    for group in texts.chunk_by(|one, other| next(one).is_some() && next(one) == next(other)) {
        forms.push(match group {
            [only] => end(only, common),
            group => one_of(group, common, depth + 1, tree),
        });
    }
    let shared = tree.text(first.0.as_bytes().get(n_shared..common).unwrap_or_default());
    tree.seq(&[shared, tree.alt(&forms)])
}

/// The rest of a delimiter from the first character on that values have only in strings.
fn rest_in_strings(delimiter: &str, notation: Notation) -> &str {
    let is_structure = |char| STRUCTURE.contains(char) || notation == Notation::Python && PYTHON_WORDS.contains(char);
    delimiter.trim_start_matches(is_structure)
}
