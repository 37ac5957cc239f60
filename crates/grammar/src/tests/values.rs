//! Values of a few schemas, in each notation, for tests of the reader.

use crate::tree::{Each, Mark, NodeId as Id, TreeBuilder};
use serde_json::Value;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Notation {
    Json,
    Gemma,
    Python,
}

pub(super) struct Values<'t> {
    pub(super) tree: &'t TreeBuilder,
    pub(super) notation: Notation,
    /// Values of other types than the schema's are read, too.
    pub(super) is_lenient: bool,
    any: Option<Id>,
}

impl<'t> Values<'t> {
    pub(super) fn new(tree: &'t TreeBuilder, notation: Notation, is_lenient: bool) -> Values<'t> {
        Values { tree, notation, is_lenient, any: None }
    }

    pub(super) fn space(&mut self) -> Id {
        match self.notation {
            Notation::Gemma if !self.is_lenient => self.tree.seq(&[]),
            _ => {
                let one = self.tree.class(&[
                    (u32::from(b' '), u32::from(b' ')),
                    (u32::from(b'\t'), u32::from(b'\n')),
                    (u32::from(b'\r'), u32::from(b'\r')),
                ]);
                let most = if self.is_lenient { None } else { Some(20) };
                self.tree.repeat(one, 0, most)
            }
        }
    }

    fn punctuation(&mut self, text: &str, json: &str) -> Id {
        match self.notation {
            Notation::Json => self.tree.text(text),
            _ => self.tree.as_text(text, json),
        }
    }

    pub(super) fn string(&mut self) -> Id {
        let tree = self.tree;
        match self.notation {
            Notation::Json => {
                let (quote, plain) =
                    (tree.text("\""), tree.class_except(&[(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F)]));
                let (hex, short) = (
                    tree.class(&[
                        (u32::from(b'0'), u32::from(b'9')),
                        (u32::from(b'a'), u32::from(b'f')),
                        (u32::from(b'A'), u32::from(b'F')),
                    ]),
                    tree.one_of("\"\\/bfnrt"),
                );
                let (slash, u, hex) = (tree.text("\\"), tree.text("u"), tree.repeat(hex, 4, Some(4)));
                let code = tree.seq(&[u, hex]);
                let escaped = tree.alt(&[short, code]);
                let escape = tree.seq(&[slash, escaped]);
                let char = tree.alt(&[plain, escape]);
                let chars = tree.repeat(char, 0, None);
                tree.seq(&[quote, chars, quote])
            }
            Notation::Gemma => {
                let (open, close, text) =
                    (tree.as_text("<|\"|>", "\""), tree.as_text("<|\"|>", "\""), tree.free_text(&["<|\"|>"]));
                let text = tree.mark(Mark::Text, text);
                tree.seq(&[open, text, close])
            }
            Notation::Python => {
                let hex = tree.class(&[
                    (u32::from(b'0'), u32::from(b'9')),
                    (u32::from(b'a'), u32::from(b'f')),
                    (u32::from(b'A'), u32::from(b'F')),
                ]);
                let mut escapes = Vec::new();
                for (python, json) in [
                    ("\\'", "'"),
                    ("\\\"", "\\\""),
                    ("\\\\", "\\\\"),
                    ("\\n", "\\n"),
                    ("\\t", "\\t"),
                    ("\\r", "\\r"),
                    ("\\b", "\\b"),
                    ("\\f", "\\f"),
                    ("\\a", "\\u0007"),
                    ("\\0", "\\u0000"),
                    ("\\/", "/"),
                ] {
                    escapes.push(tree.as_text(python, json));
                }
                for (begin, json, n) in [("\\x", "\\u00", 2), ("\\u", "\\u", 4)] {
                    let (begin, digits) = (tree.as_text(begin, json), tree.repeat(hex, n, Some(n)));
                    let digits = tree.mark(Mark::Verbatim, digits);
                    escapes.push(tree.seq(&[begin, digits]));
                }
                let mut forms = Vec::new();
                for quote in ["'", "\""] {
                    let plain = tree.class_except(&[
                        (0, 0x1F),
                        (quote.as_bytes()[0].into(), quote.as_bytes()[0].into()),
                        (0x5C, 0x5C),
                    ]);
                    let newline =
                        tree.class(&[(u32::from(b'\n'), u32::from(b'\n')), (u32::from(b'\t'), u32::from(b'\t'))]);
                    let plain = tree.alt(&[plain, newline]);
                    let plain = tree.repeat(plain, 1, None);
                    let plain = tree.mark(Mark::Text, plain);
                    let escape = tree.alt(&escapes);
                    // A text and escapes in turn, so that a text is one mark.
                    let (some, more) = (tree.repeat(escape, 1, None), tree.opt(plain));
                    let again = tree.seq(&[some, more]);
                    let (first, rest) = (tree.opt(plain), tree.repeat(again, 0, None));
                    let (open, close) = (tree.as_text(quote, "\""), tree.as_text(quote, "\""));
                    forms.push(tree.seq(&[open, first, rest, close]));
                }
                tree.alt(&forms)
            }
        }
    }

    fn verbatim(&mut self, id: Id) -> Id {
        if self.notation == Notation::Json { id } else { self.tree.mark(Mark::Verbatim, id) }
    }

    fn number(&mut self, is_integer: bool) -> Id {
        let tree = self.tree;
        let (minus, zero, first, digit) = (
            tree.text("-"),
            tree.text("0"),
            tree.class(&[(u32::from(b'1'), u32::from(b'9'))]),
            tree.class(&[(u32::from(b'0'), u32::from(b'9'))]),
        );
        let (minus, digits) = (tree.opt(minus), tree.repeat(digit, 0, Some(15)));
        let long = tree.seq(&[first, digits]);
        let whole = tree.alt(&[zero, long]);
        let mut parts = vec![minus, whole];
        if !is_integer {
            let (point, digits) = (tree.text("."), tree.repeat(digit, 1, Some(15)));
            let part = tree.seq(&[point, digits]);
            let (e, sign) = (
                tree.class(&[(u32::from(b'e'), u32::from(b'e')), (u32::from(b'E'), u32::from(b'E'))]),
                tree.class(&[(u32::from(b'+'), u32::from(b'+')), (u32::from(b'-'), u32::from(b'-'))]),
            );
            let (sign, digits) = (tree.opt(sign), tree.repeat(digit, 1, Some(3)));
            let power = tree.seq(&[e, sign, digits]);
            parts.extend([tree.opt(part), tree.opt(power)]);
        }
        let number = tree.seq(&parts);
        self.verbatim(number)
    }

    fn constant(&mut self, value: &Value) -> Id {
        let python = match value {
            Value::Bool(true) => "True",
            Value::Bool(false) => "False",
            _ => "None",
        };
        let text = self.tree.text(value.to_string());
        let json = self.verbatim(text);
        if self.notation != Notation::Python {
            return json;
        }
        let python = self.tree.as_text(python, &value.to_string());
        self.tree.alt(&[python, json])
    }

    fn literal(&mut self, value: &Value) -> Id {
        match (value, self.notation) {
            (Value::String(text), Notation::Gemma) => {
                self.tree.as_text(&format!("<|\"|>{text}<|\"|>"), &value.to_string())
            }
            (Value::String(text), Notation::Python) => {
                let (one, two) = (format!("'{text}'"), format!("\"{text}\""));
                let forms = [self.tree.as_text(&one, &value.to_string()), self.tree.as_text(&two, &value.to_string())];
                self.tree.alt(&forms)
            }
            (Value::Bool(_) | Value::Null, _) => self.constant(value),
            _ => {
                let text = self.tree.text(value.to_string());
                self.verbatim(text)
            }
        }
    }

    fn key(&mut self, name: &str) -> Id {
        let quoted = Value::from(name).to_string();
        match self.notation {
            Notation::Json => self.tree.text(&quoted),
            Notation::Gemma => self.tree.as_text(name, &quoted),
            Notation::Python => self.literal(&Value::from(name)),
        }
    }

    pub(super) fn value(&mut self, schema: &Value) -> Id {
        let strict = self.by_schema(schema);
        if !self.is_lenient {
            return strict;
        }
        // A value that obeys the schema has priority, or else any value is read.
        let any = self.any();
        self.tree.alt(&[strict, any])
    }

    fn by_schema(&mut self, schema: &Value) -> Id {
        if let Some(values) = schema.get("enum").and_then(Value::as_array) {
            let forms: Vec<Id> = values.iter().map(|value| self.literal(value)).collect();
            return self.tree.alt(&forms);
        }
        match schema.get("type").and_then(Value::as_str) {
            Some("string") => self.string(),
            Some("integer") => self.number(true),
            Some("number") => self.number(false),
            Some("boolean") => {
                let forms = [self.constant(&true.into()), self.constant(&false.into())];
                self.tree.alt(&forms)
            }
            Some("null") => self.constant(&Value::Null),
            Some("array") => {
                let item = match schema.get("items") {
                    Some(items) => self.value(items),
                    None => self.any(),
                };
                self.array(item)
            }
            Some("object") if schema.get("properties").is_some() => self.object(schema),
            Some("object") => self.any_object(),
            _ => self.any(),
        }
    }

    fn array(&mut self, item: Id) -> Id {
        let (open, comma, close, space) =
            (self.punctuation("[", "["), self.punctuation(",", ", "), self.punctuation("]", "]"), self.space());
        let tree = self.tree;
        let more = tree.seq(&[space, comma, space, item]);
        let more = tree.repeat(more, 0, None);
        let items = tree.seq(&[item, more, space]);
        let items = tree.opt(items);
        tree.seq(&[open, space, items, close])
    }

    pub(super) fn object(&mut self, schema: &Value) -> Id {
        let required: Vec<&str> =
            schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let (open, comma, colon, close, space) = (
            self.punctuation("{", "{"),
            self.punctuation(",", ", "),
            self.punctuation(":", ": "),
            self.punctuation("}", "}"),
            self.space(),
        );
        let mut items = Vec::new();
        for (name, schema) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let (key, value) = (self.key(name), self.value(schema));
            let item = self.tree.seq(&[key, space, colon, space, value, space]);
            items.push((item, required.contains(&name.as_str())));
        }
        let separator = self.tree.seq(&[comma, space]);
        let each = self.tree.each(Each { items, separator, further: None, least: 0, most: None, any_order: true });
        self.tree.seq(&[open, space, each, close])
    }

    pub(super) fn any_object(&mut self) -> Id {
        let (open, comma, colon, close, space) = (
            self.punctuation("{", "{"),
            self.punctuation(",", ", "),
            self.punctuation(":", ": "),
            self.punctuation("}", "}"),
            self.space(),
        );
        let key = match self.notation {
            Notation::Gemma => {
                let char = self.tree.class(&[
                    (u32::from(b'a'), u32::from(b'z')),
                    (u32::from(b'A'), u32::from(b'Z')),
                    (u32::from(b'0'), u32::from(b'9')),
                    (u32::from(b'_'), u32::from(b'_')),
                    (u32::from(b'-'), u32::from(b'-')),
                ]);
                let name = self.tree.repeat(char, 1, Some(64));
                let (name, quote) = (self.tree.mark(Mark::Text, name), self.tree.emit("\""));
                self.tree.seq(&[quote, name, quote])
            }
            _ => self.string(),
        };
        let value = self.any();
        let tree = self.tree;
        let item = tree.seq(&[key, space, colon, space, value, space]);
        let more = tree.seq(&[comma, space, item]);
        let more = tree.repeat(more, 0, None);
        let items = tree.seq(&[item, more]);
        let items = tree.opt(items);
        tree.seq(&[open, space, items, close])
    }

    pub(super) fn any(&mut self) -> Id {
        if let Some(any) = self.any {
            return any;
        }
        let any = self.tree.declare();
        self.any = Some(any);
        let mut forms = vec![self.any_object(), self.array(any), self.string(), self.number(false)];
        for value in [true.into(), false.into(), Value::Null] {
            forms.push(self.constant(&value));
        }
        let body = self.tree.alt(&forms);
        self.tree.define(any, body);
        any
    }
}
