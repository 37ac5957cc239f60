//! Reads schemas of texts, integers and numbers.

use foredraft_grammar::pattern::CharSet;
use serde_json::{Map, Value};

use super::SchemaReader;
use crate::document::{SchemaResult, VISIT, empty_at, error_at};
use crate::keywords::{FORMATS, bounds};
use crate::negation;
use crate::numbers::{IntegerRange, NumberBound, NumberRange};
use crate::pattern::{self, PatternNode};
use crate::tree::{SchemaNode, TextNode};

impl SchemaReader<'_, '_> {
    /// Reads a string schema.
    pub(super) fn text(&self, map: &Map<String, Value>, at: &str) -> SchemaResult<TextNode> {
        let (least, most) = bounds(map, "minLength", "maxLength", at)?;
        let length = |node: PatternNode| -> SchemaResult<PatternNode> {
            if let Some(limited) = node.clone().limit(least, most) {
                return Ok(limited);
            }
            for keyword in ["minLength", "maxLength"].into_iter().filter(|keyword| map.contains_key(*keyword)) {
                let why = "the pattern has parts of several lengths beside minLength or maxLength, which a grammar cannot enforce";
                self.document.drop_keyword(at, keyword, why)?;
            }
            Ok(node)
        };
        if let Some(texts) = negation::excluded_texts(map) {
            if ["pattern", "format", "minLength", "maxLength"].iter().all(|keyword| !map.contains_key(*keyword)) {
                return Ok(TextNode::Except(texts.into_iter().map(str::to_owned).collect()));
            }
            self.document.drop_keyword(at, "not", "not beside a pattern, format or length cannot be enforced")?;
        }
        let format = match map.get("format") {
            None => None,
            Some(Value::String(format)) => FORMATS.into_iter().find(|known| known == format),
            Some(_) => return error_at(at, "format must be a string"),
        };
        if let Some(pattern) = map.get("pattern") {
            let Some(pattern) = pattern.as_str() else { return error_at(at, "pattern must be a string") };
            // A format beside a pattern is an annotation, as in the standard: generators of schemas write both, and the pattern is exact.
            match pattern::whole_text(pattern, self.document.work()).and_then(PatternNode::expressible) {
                Ok(node) => return Ok(TextNode::Pattern(length(node)?)),
                Err(part) => {
                    self.document.count_steps(VISIT, at)?;
                    let why = format!("the pattern has {part}, which a grammar cannot enforce");
                    self.document.drop_keyword(at, "pattern", why)?;
                }
            }
        }
        if let Some(format) = format {
            if least > 0 || most.is_some() {
                let keyword = if least > 0 { "minLength" } else { "maxLength" };
                self.document.drop_keyword(at, keyword, "a length beside format cannot be enforced")?;
            }
            return Ok(TextNode::Format(format));
        }
        let (least, most) = (u32::try_from(least).unwrap_or(u32::MAX), most.and_then(|most| u32::try_from(most).ok()));
        Ok(TextNode::Pattern(match most {
            Some(0) => PatternNode::EMPTY,
            most => PatternNode::Repeat(Box::new(PatternNode::Class(CharSet::any())), least, most),
        }))
    }

    /// Notes `multipleOf`, unless it is 1 and the values are integers.
    fn multiple(&self, map: &Map<String, Value>, at: &str, of_integers: bool) -> SchemaResult<()> {
        let restricts = |step: &Value| !of_integers || step.as_f64() != Some(1.0);
        if map.get("multipleOf").is_some_and(restricts) {
            self.document.drop_keyword(at, "multipleOf", "multipleOf cannot be enforced by a grammar")?;
        }
        Ok(())
    }

    /// Reads an integer schema.
    pub(super) fn integer(&self, map: &Map<String, Value>, at: &str) -> SchemaResult<SchemaNode> {
        self.multiple(map, at, true)?;
        let bound = |key: &str, round: fn(f64) -> f64, add: i64| match map.get(key) {
            // In draft 4 it says whether the other bound is exclusive.
            None | Some(Value::Bool(_)) => Ok(None),
            Some(value) => match (value.as_i64(), value.as_f64()) {
                (Some(whole), _) => Ok(Some(whole.saturating_add(add))),
                (None, Some(number)) => Ok(Some((round(number) as i64).saturating_add(add))),
                _ => error_at(at, format!("{key} must be a number")),
            },
        };
        let is_exclusive = |key: &str| i64::from(map.get(key) == Some(&Value::Bool(true)));
        let (above, below) = (is_exclusive("exclusiveMinimum"), is_exclusive("exclusiveMaximum"));
        let lower = if above == 1 { bound("minimum", f64::floor, 1)? } else { bound("minimum", f64::ceil, 0)? };
        let upper = if below == 1 { bound("maximum", f64::ceil, -1)? } else { bound("maximum", f64::floor, 0)? };
        let least = lower.max(bound("exclusiveMinimum", f64::floor, 1)?);
        let most = [upper, bound("exclusiveMaximum", f64::ceil, -1)?].into_iter().flatten().min();
        let range = IntegerRange { least, most };
        match range.bounds() {
            Some((least, most)) if least > most => {
                empty_at(at, format!("no integer of at most 15 digits is from {least} to {most}"))
            }
            _ => Ok(SchemaNode::Integer(range)),
        }
    }

    /// Reads a number schema.
    pub(super) fn number(&self, map: &Map<String, Value>, at: &str) -> SchemaResult<SchemaNode> {
        self.multiple(map, at, false)?;
        let bound = |key: &str, other: &str, is_lower: bool| -> SchemaResult<Option<NumberBound>> {
            let mut bound: Option<NumberBound> = None;
            for (key, is_exclusive) in [(key, map.get(other) == Some(&Value::Bool(true))), (other, true)] {
                let number = match map.get(key) {
                    None | Some(Value::Bool(_)) => continue,
                    Some(Value::Number(number)) => number,
                    Some(_) => return error_at(at, format!("{key} must be a number")),
                };
                match NumberBound::new(number, is_exclusive) {
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
            least: bound("minimum", "exclusiveMinimum", true)?,
            most: bound("maximum", "exclusiveMaximum", false)?,
        };
        if range.pattern().is_none() {
            return empty_at(at, "no number of at most 15 digits is within the bounds");
        }
        Ok(SchemaNode::Number(range))
    }
}
