//! Reads schemas of texts, integers and numbers.

use std::sync::Arc;

use foredraft_grammar::pattern::CharSet;
use serde_json::{Map, Number, Value};

use super::SchemaReader;
use crate::document::{SchemaResult, VISIT, empty_at, error_at, show_text, too_large_at};
use crate::keywords::bounds;
use crate::numbers::{NumberBound, NumberRange};
use crate::pattern::{self, PatternNode, SetFault, TextSet};
use crate::tree::{SchemaNode, TextNode};
use crate::{formats, negation};

impl SchemaReader<'_, '_> {
    /// Reads a string schema.
    pub(super) fn text(&self, map: &Map<String, Value>, at: &str) -> SchemaResult<TextNode> {
        let (least, most) = bounds(map, "minLength", "maxLength", at)?;
        let work = self.document.work();
        // Each keyword, with the texts that it wants and those that it forbids.
        let mut parts: Vec<(&str, Vec<PatternNode>, Vec<PatternNode>)> = Vec::new();
        let mut excluded = Vec::new();
        if let Some(not) = map.get("not").filter(|_| negation::excludes_texts(map)) {
            negation::excluded(not, &mut excluded);
        }
        let wanted = map.get("pattern").map(|pattern| ("pattern", "pattern", pattern));
        let excluded = excluded.iter().map(|(key, value)| ("not", *key, *value));
        for (keyword, key, value) in wanted.into_iter().chain(excluded) {
            let (mut all, mut none) = (Vec::new(), Vec::new());
            match (key, value.as_str()) {
                ("enum", _) => {
                    let texts = value.as_array().into_iter().flatten().filter_map(Value::as_str);
                    let texts: Vec<PatternNode> = texts.map(PatternNode::text).collect();
                    none.extend((!texts.is_empty()).then_some(PatternNode::Alt(texts)));
                }
                (_, None) => return error_at(at, "pattern must be a string"),
                (_, Some(pattern)) => {
                    self.document.count_steps(VISIT, at)?;
                    let read = pattern::whole_texts(pattern, &mut all, &mut none, work);
                    let is_single = keyword == "pattern" || none.is_empty() && all.len() == 1;
                    if let Err(part) = read.and(if is_single { Ok(()) } else { Err("a lookahead".to_owned()) }) {
                        let why = format!("the pattern has {part}, which a grammar cannot enforce");
                        self.document.drop_keyword(at, keyword, why)?;
                        continue;
                    }
                    if keyword == "not" {
                        std::mem::swap(&mut all, &mut none);
                    }
                }
            }
            parts.push((keyword, all, none));
        }
        let lengths = ["minLength", "maxLength"].into_iter().find(|keyword| map.contains_key(*keyword));
        let has_length = lengths.is_some();
        match map.get("format") {
            None => {}
            // An automaton of regular expressions of some length has too many states.
            Some(Value::String(format)) if format == "regex" && (!parts.is_empty() || has_length) => {
                self.document.note(at, "format", "the format \"regex\" beside other keywords is not enforced");
            }
            Some(Value::String(format)) => match formats::pattern(format) {
                Some(texts) => parts.push(("format", vec![pattern::own(&texts, work)], Vec::new())),
                None => self.document.note(at, "format", format!("the format {} is not known", show_text(format))),
            },
            Some(_) => return error_at(at, "format must be a string"),
        }
        if let Some(keyword) = lengths {
            if let [(_, all, none)] = parts.as_mut_slice()
                && let ([only], []) = (all.as_slice(), none.as_slice())
                && let Some(limited) = only.clone().limit(least, most)
            {
                *all = vec![limited];
            } else {
                let count = |length: u64| u32::try_from(length).unwrap_or(u32::MAX);
                let any = Box::new(PatternNode::Class(CharSet::any()));
                let texts = match most {
                    Some(0) => PatternNode::EMPTY,
                    most => PatternNode::Repeat(any, count(least), most.map(count)),
                };
                parts.push((keyword, vec![texts], Vec::new()));
            }
        }
        loop {
            let all = parts.iter().flat_map(|part| part.1.iter().cloned()).collect();
            let none = parts.iter().flat_map(|part| part.2.iter().cloned()).collect();
            let (keyword, why) = match (self.text_node(all, none), parts.pop()) {
                (Ok(node), _) => return Ok(node),
                // A pattern beside a format that contradicts it is exact: generators of schemas write both.
                (Err(SetFault::Empty), Some(("format", ..))) if parts.len() == 1 => {
                    ("format", "it contradicts the pattern".to_owned())
                }
                (Err(SetFault::Empty), _) => return empty_at(at, "no string is valid under all of its keywords"),
                (Err(SetFault::TooLarge(why)), Some((keyword, ..))) => (keyword, why),
                (Err(SetFault::TooLarge(why)), None) => return too_large_at(at, why),
            };
            self.document.count_steps(VISIT, at)?;
            let why = format!("{keyword} beside other keywords cannot be enforced by a grammar: {why}");
            self.document.drop_keyword(at, keyword, why)?;
        }
    }

    /// The numbers of a pattern that `multipleOf` allows. `None`: all, or too many to enforce it.
    fn multiples(
        &self,
        map: &Map<String, Value>,
        at: &str,
        numbers: Option<String>,
    ) -> SchemaResult<Option<SchemaNode>> {
        let (Some(step), Some(numbers)) = (map.get("multipleOf"), numbers) else { return Ok(None) };
        let step = step.as_number().and_then(NumberBound::decimal_step);
        let set = match step {
            Some(step) => TextSet::new(
                vec![pattern::own(&numbers, self.document.work())],
                Vec::new(),
                Some(step),
                self.document.work(),
            ),
            None => Err(SetFault::TooLarge("it is no positive number of few digits".to_owned())),
        };
        match set {
            Ok(set) => Ok(Some(SchemaNode::Multiples(Arc::new(set)))),
            Err(SetFault::Empty) => empty_at(at, "no number within the bounds is a multiple of multipleOf"),
            Err(SetFault::TooLarge(why)) => {
                self.document.count_steps(VISIT, at)?;
                self.document.drop_keyword(
                    at,
                    "multipleOf",
                    format!("multipleOf cannot be enforced by a grammar: {why}"),
                )?;
                Ok(None)
            }
        }
    }

    /// Reads a schema of numbers, or of integers.
    pub(super) fn number(&self, map: &Map<String, Value>, at: &str, is_integer: bool) -> SchemaResult<SchemaNode> {
        let bound = |key: &str, other: &str, is_lower: bool| -> SchemaResult<Option<NumberBound>> {
            let mut bound: Option<NumberBound> = None;
            for (key, is_exclusive) in [(key, map.get(other) == Some(&Value::Bool(true))), (other, true)] {
                let number = match map.get(key) {
                    None | Some(Value::Bool(_)) => continue,
                    Some(Value::Number(number)) => number,
                    Some(_) => return error_at(at, format!("{key} must be a number")),
                };
                // To integers, one fraction is as good as another.
                let half = |number: f64| Number::from_f64(number.trunc() + number.signum() / 2.0);
                let rounded = || number.as_f64().filter(|_| is_integer).and_then(half);
                let read = |number: &Number| NumberBound::new(number, is_exclusive);
                match read(number).or_else(|| read(&rounded()?)) {
                    Some(new) => bound = Some(bound.map_or(new.clone(), |old| old.tighter(new, is_lower))),
                    None => {
                        let why = format!("{key} has more digits than a grammar can enforce");
                        self.document.drop_keyword(at, key, why)?;
                    }
                }
            }
            Ok(bound)
        };
        let range = NumberRange {
            is_integer,
            least: bound("minimum", "exclusiveMinimum", true)?,
            most: bound("maximum", "exclusiveMaximum", false)?,
        };
        let pattern = range.pattern();
        if pattern.is_none() {
            let kind = if is_integer { "integer" } else { "number" };
            return empty_at(at, format!("no {kind} of at most 15 digits is within the bounds"));
        }
        Ok(self.multiples(map, at, pattern)?.unwrap_or(SchemaNode::Number(range)))
    }
}
