//! `minProperties` and `maxProperties`: a grammar can enforce them by saying which properties there are.

use serde_json::{Map, Value, json};

/// The maximum number of object schemas that take the place of one.
const MAX_ALTERNATIVES: usize = 32;

/// A simplified object schema.
#[derive(Debug, Clone)]
pub(super) struct ObjectSchema {
    pub(super) properties: Map<String, Value>,
    /// Names of `properties`.
    pub(super) required: Vec<String>,
    /// The schema of all other properties. None: there are no others.
    pub(super) additional: Option<Value>,
}

impl ObjectSchema {
    /// Object schemas such that what is valid under one of them has at least `least` properties, and at most `most` without the additional
    /// ones. If there would be too many, not all objects with so many properties are valid under one. None: no object is valid, or additional
    /// properties would have to count, which can have the same name.
    pub(super) fn with_counts(self, least: usize, most: Option<usize>) -> Option<Vec<ObjectSchema>> {
        let is_optional = |name: &&String| !self.required.contains(name);
        let optional: Vec<&String> = self.properties.keys().filter(is_optional).collect();
        let n_missing = least.saturating_sub(self.required.len());
        let n_allowed = match most {
            Some(most) => most.checked_sub(self.required.len())?.min(optional.len()),
            None => optional.len(),
        };
        if n_missing > n_allowed {
            return None;
        }
        let mut alternatives = Vec::new();
        let choices = subsets(&optional, n_allowed, MAX_ALTERNATIVES);
        for allowed in &choices {
            for needed in subsets(allowed, n_missing, MAX_ALTERNATIVES / choices.len()) {
                let is_kept = |name: &String| self.required.contains(name) || allowed.contains(&name);
                let kept = self.properties.iter().filter(|(name, _)| is_kept(name));
                alternatives.push(ObjectSchema {
                    properties: kept.map(|(name, schema)| (name.clone(), schema.clone())).collect(),
                    required: self.required.iter().chain(needed).cloned().collect(),
                    additional: self.additional.clone(),
                });
            }
        }
        Some(alternatives)
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "type": "object", "properties": self.properties, "required": self.required,
            "additionalProperties": self.additional.as_ref().unwrap_or(&Value::Bool(false)),
        })
    }
}

/// All subsets with `n` of the names, or only the first if there are more than `most`.
fn subsets<'a>(names: &[&'a String], n: usize, most: usize) -> Vec<Vec<&'a String>> {
    let first = || vec![names.iter().take(n).copied().collect()];
    let mut all: Vec<Vec<&String>> = vec![Vec::new()];
    for (index, name) in names.iter().enumerate() {
        let rest = names.len() - index - 1;
        let mut next = Vec::new();
        for subset in all {
            if subset.len() < n {
                next.push([subset.as_slice(), &[name]].concat());
            }
            if subset.len() + rest >= n {
                next.push(subset);
            }
        }
        // Each of them is the beginning of at least one subset.
        if next.len() > most {
            return first();
        }
        all = next;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsets_are_all_or_the_first() {
        let names: Vec<String> = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let names: Vec<&String> = names.iter().collect();
        let texts = |n: usize, most: usize| {
            subsets(&names, n, most)
                .iter()
                .map(|subset| subset.iter().map(|name| name.as_str()).collect::<String>())
                .collect::<Vec<_>>()
        };
        assert_eq!(texts(2, 32), ["ab", "ac", "ad", "bc", "bd", "cd"]);
        assert_eq!((texts(4, 32), texts(0, 32)), (vec!["abcd".to_owned()], vec![String::new()]));
        assert_eq!(texts(2, 5), ["ab"]);
    }
}
