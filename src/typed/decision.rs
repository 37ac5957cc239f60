//! Questions about a state, and their answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// A question for [`Engine::decide`](super::Engine::decide).
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct HostQuestion(Value);

impl HostQuestion {
    /// Which of these options is best? Each has a description, which may be empty.
    pub fn choice<'a>(instructions: impl Into<String>, options: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let described = |text: &str| if text.is_empty() { Value::Null } else { text.into() };
        let options = options.into_iter().map(|(name, text)| (name.to_owned(), described(text)));
        Self::of("choice", instructions.into(), options.collect::<Map<_, _>>().into())
    }

    /// Which of these levels is it, the lowest one first?
    pub fn score<'a>(instructions: impl Into<String>, levels: impl IntoIterator<Item = &'a str>) -> Self {
        Self::of("score", instructions.into(), levels.into_iter().collect())
    }

    /// How probable is it that this statement holds?
    pub fn noul(statement: impl Into<String>) -> Self {
        Self::of("noul", statement.into(), Value::Null)
    }

    fn of(kind: &str, instructions: String, criteria: Value) -> Self {
        Self(json!({"type": kind, "instructions": instructions, "criteria": criteria}))
    }
}

/// The answer to a [`Question`](HostQuestion).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum DecisionAnswer {
    /// To a question by [`Question::choice`](HostQuestion::choice).
    Choice {
        /// The most probable option.
        choice: String,
        /// The probability of each option; their sum is 1.
        probabilities: BTreeMap<String, f64>,
        /// 0: as good as a guess; 1: certain.
        confidence: f64,
    },
    /// To a question by [`Question::score`](HostQuestion::score).
    Score {
        /// The expected level, from 0; it can be between two.
        score: f64,
        /// The probability of each level, by its number; their sum is 1.
        probabilities: BTreeMap<String, f64>,
        /// 0: as good as a guess; 1: certain.
        confidence: f64,
    },
    /// To a question by [`Question::noul`](HostQuestion::noul).
    Noul {
        /// The probability that the statement holds.
        noul: f64,
    },
}
