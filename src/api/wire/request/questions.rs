//! `questions`: what a request decides about a state, and the answers. The names are those of TypeSafe's System One API, which llama.cpp's
//! `/v1/systemone` has too.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};

use super::decision_model::DecisionModel;
use super::prompt::{as_text, value_len};
use crate::api::wire::fields::{Fields, number_in, show, unexpected};
use crate::error::{Error, Result};

/// The maximum number of questions.
const MAX_QUESTIONS: usize = 800;
/// The maximum number of options of a choice: two letters each.
const MAX_OPTIONS: usize = 26 * 26;
/// The maximum number of levels of a score: a digit each.
const MAX_LEVELS: usize = 10;
/// The maximum length of an id and of an option's name, in bytes.
const MAX_NAME: usize = 1 << 10;
/// The largest temperature.
const MAX_TEMPERATURE: f32 = 100.0;

/// A question of a decision.
#[derive(Debug, Clone, PartialEq)]
pub struct AskedQuestion {
    /// Its name in `questions` and `answers`. The model does not see it.
    pub id: String,
    /// How the answer is made of its options' probabilities.
    pub kind: AnswerKind,
    /// Divides the logits, if the request says so.
    pub temperature: Option<f32>,
    /// The model that it is asked by a prompt of its own; `None`: by its chat template.
    model: Option<DecisionModel>,
    instructions: Value,
    options: Vec<AnswerOption>,
}

foredraft_base::words! {
    /// The type of a question.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum AnswerKind {
        /// The best of some options.
        Choice => "choice",
        /// A place among ordered levels.
        Score => "score",
        /// How probable it is that a statement holds.
        Noul => "noul",
    }
}

#[derive(Debug, Clone, PartialEq)]
struct AnswerOption {
    /// Its name in the answer.
    key: String,
    /// The text that the model answers with.
    label: String,
    description: Value,
}

impl AskedQuestion {
    /// The question's name in messages.
    pub fn name(&self) -> String {
        format!("questions.{}", self.id)
    }

    /// About the length of its text in bytes.
    pub fn len_estimate(&self) -> usize {
        let options = self.options.iter().map(|option| option.key.len() + value_len(&option.description));
        options.fold(value_len(&self.instructions), usize::saturating_add)
    }

    /// Asks it in the form of a native decision model.
    pub fn set_model(&mut self, model: DecisionModel) {
        self.model = Some(model);
        if self.kind == AnswerKind::Noul && !model.is_true_first() {
            self.options.reverse();
        }
    }

    /// The native decision model whose form it has.
    pub fn model(&self) -> Option<DecisionModel> {
        self.model
    }

    /// The number of its options.
    pub fn n_options(&self) -> usize {
        self.options.len()
    }

    /// The number of labels among which a native decision model decides.
    pub fn n_labels(&self) -> usize {
        match (self.kind, self.model) {
            (AnswerKind::Noul, Some(model)) => model.n_ratings(),
            _ => self.options.len(),
        }
    }

    /// The question, once for each order in which its options are asked, and whether that is the reverse one.
    pub fn orders(&self) -> impl Iterator<Item = (&AskedQuestion, bool)> {
        let both = self.kind == AnswerKind::Choice && self.model.is_some_and(DecisionModel::asks_both_orders);
        let n = if both && self.options.len() > 1 { 2 } else { 1 };
        [false, true].into_iter().take(n).map(move |is_reversed| (self, is_reversed))
    }

    /// The question as the template of a native decision model gets it. `labels`: those of the options, if it gets them.
    pub fn variables(&self, labels: &[String], is_reversed: bool) -> Map<String, Value> {
        let option = |(index, option): (usize, &AnswerOption)| {
            let label = labels.get(index).map(|label| ("label".to_owned(), label.as_str().into()));
            let own = [
                ("key".to_owned(), option.key.as_str().into()),
                ("description".to_owned(), option.description.clone()),
            ];
            own.into_iter().chain(label).collect::<Map<_, _>>().into()
        };
        let options: Vec<Value> = match is_reversed {
            false => self.options.iter().enumerate().map(option).collect(),
            true => self.options.iter().rev().enumerate().map(option).collect(),
        };
        let instructions = self.instructions.clone();
        Map::from_iter([
            ("id".to_owned(), self.id.as_str().into()),
            ("type".to_owned(), self.kind.as_str().into()),
            ("instructions".to_owned(), instructions),
            ("options".to_owned(), options.into()),
        ])
    }

    /// The texts of its answers.
    pub fn labels(&self) -> impl ExactSizeIterator<Item = &str> {
        self.options.iter().map(|option| option.label.as_str())
    }

    /// The question and its options, as the model reads them.
    pub fn text(&self) -> String {
        let mut text = as_text(&self.instructions);
        text.push('\n');
        for AnswerOption { key, label, description } in &self.options {
            let description = as_text(description);
            let line = match self.kind {
                AnswerKind::Choice if description.is_empty() => format!("\n{label}: {key}"),
                AnswerKind::Choice => format!("\n{label}: {key} ({description})"),
                AnswerKind::Noul if description.is_empty() => continue,
                AnswerKind::Score | AnswerKind::Noul => format!("\n{label}: {description}"),
            };
            text.push_str(&line);
        }
        if self.kind == AnswerKind::Noul {
            text.push_str("\nYes or No?");
        }
        text
    }

    /// The answer, with the probability of each option, in each order.
    pub fn answer(&self, orders: &[&[f64]]) -> Value {
        let of = |at: usize, (order, probs): (usize, &&[f64])| {
            let at = if order == 0 { Some(at) } else { (probs.len() - 1).checked_sub(at) };
            at.and_then(|at| probs.get(at)).copied().unwrap_or(0.0)
        };
        let n = orders.first().map_or(0, |probs| probs.len());
        let mean = |at| orders.iter().enumerate().map(|order| of(at, order)).sum::<f64>() / orders.len() as f64;
        let probs: &[f64] = &(0..n).map(mean).collect::<Vec<f64>>();
        let probability = |index: usize| probs.get(index).copied().unwrap_or(0.0);
        let named = || self.options.iter().zip(probs).map(|(option, prob)| (option.key.clone(), json!(prob)));
        let best = (1..probs.len()).fold(0, |best, at| if probability(at) > probability(best) { at } else { best });
        let kind = self.kind.as_str();
        match self.kind {
            AnswerKind::Choice => json!({
                "type": kind,
                "choice": self.options.get(best).map(|option| &option.key),
                "probabilities": named().collect::<Map<_, _>>(),
                "confidence": choice_confidence(probability(best), probs.len()),
            }),
            AnswerKind::Score => {
                let legend = self.options.iter().map(|option| (option.key.clone(), option.description.clone()));
                json!({
                    "type": kind,
                    "score": probs.iter().zip(0_u32..).map(|(prob, level)| prob * f64::from(level)).sum::<f64>(),
                    "legend": legend.collect::<Map<_, _>>(),
                    "probabilities": named().collect::<Map<_, _>>(),
                    "confidence": score_confidence(best, probs),
                })
            }
            AnswerKind::Noul if self.model.is_none_or(DecisionModel::is_true_first) => {
                json!({"type": kind, "noul": probability(0)})
            }
            AnswerKind::Noul => {
                let rated: f64 = probs.iter().zip(0_u32..).map(|(prob, rating)| prob * f64::from(rating)).sum();
                json!({"type": kind, "noul": rated / (probs.len() as f64 - 1.0).max(1.0)})
            }
        }
    }
}

/// How far the largest of `n` probabilities is above that of a guess: 0 to 1. As TypeSafe computes it.
fn choice_confidence(best: f64, n: usize) -> f64 {
    let guess = 1.0 / n as f64;
    if n < 2 { 1.0 } else { ((best - guess) / (1.0 - guess)).max(0.0) }
}

/// One minus the mean distance to the most probable level, relative to that of equal probabilities to the middle. As TypeSafe computes it.
fn score_confidence(best: usize, probs: &[f64]) -> f64 {
    let middle = (probs.len() as f64 - 1.0) / 2.0;
    let levels = || (0_u32..).map(f64::from).zip(probs);
    let distance: f64 = levels().map(|(level, prob)| prob * (level - best as f64).abs()).sum();
    let of_equals = levels().map(|(level, _)| (level - middle).abs()).sum::<f64>() / probs.len() as f64;
    (1.0 - distance / of_equals).max(0.0)
}

/// Reads `questions` and `temperatures`. None: the request makes no such decision.
pub(super) fn read(fields: &mut Fields) -> Result<Vec<AskedQuestion>> {
    const NAME: &str = "questions";
    let questions = match fields.get(NAME) {
        None => {
            for key in ["state", "temperatures"] {
                if fields.get(key).is_some() {
                    fields.warn(format!("{key}: ignored without questions"));
                }
            }
            return Ok(Vec::new());
        }
        Some(Value::Object(questions)) => questions,
        Some(other) => return Err(unexpected(NAME, "an object of questions by id", other)),
    };
    if !(1..=MAX_QUESTIONS).contains(&questions.len()) {
        return Err(Error::invalid(format!(
            "{NAME}: expected 1 to {MAX_QUESTIONS} questions, got {}",
            questions.len()
        )));
    }
    let mut temperatures = [None; AnswerKind::WORDS.len()];
    match fields.get("temperatures") {
        None => {}
        Some(Value::Object(given)) => {
            let mut inner = Fields::nested("temperatures.", given);
            for (temperature, (word, _)) in temperatures.iter_mut().zip(AnswerKind::WORDS) {
                let read =
                    |value| number_in(&format!("temperatures.{word}"), value, f32::MIN_POSITIVE..=MAX_TEMPERATURE);
                *temperature = inner.get(word).map(read).transpose()?;
            }
            fields.absorb(inner);
        }
        Some(other) => return Err(unexpected("temperatures", "an object of numbers by type", other)),
    }
    if fields.is_given("temperature") {
        fields.warn("temperature: ignored with questions, which have temperatures");
    }
    let read = |(id, value): (&String, &Value)| {
        validate_name(NAME, "an id", id)?;
        let name = format!("{NAME}.{id}");
        let Value::Object(map) = value else {
            return Err(unexpected(&name, "an object with type and instructions", value));
        };
        let mut inner = Fields::nested(format!("{name}."), map);
        let kind = inner.word("type", &AnswerKind::WORDS)?;
        let kind = kind.ok_or_else(|| unexpected(&format!("{name}.type"), "choice, score or noul", &Value::Null))?;
        let instructions = inner.get("instructions").filter(|value| !as_text(value).trim().is_empty()).cloned();
        let instructions =
            instructions.ok_or_else(|| unexpected(&format!("{name}.instructions"), "a question", &Value::Null))?;
        let criteria = inner.get("criteria").unwrap_or(&Value::Null);
        let options = options(&format!("{name}.criteria"), kind, criteria)?;
        fields.absorb(inner);
        let place = AnswerKind::WORDS.iter().position(|(_, known)| *known == kind);
        let temperature = place.and_then(|place| temperatures.get(place).copied().flatten());
        Ok(AskedQuestion { id: id.clone(), kind, temperature, model: None, instructions, options })
    };
    questions.iter().map(read).collect()
}

/// Reads `criteria`, which has this name in messages.
fn options(name: &str, kind: AnswerKind, criteria: &Value) -> Result<Vec<AnswerOption>> {
    let option = |key: &str, label: String, description: &Value| AnswerOption {
        key: key.to_owned(),
        label,
        description: description.clone(),
    };
    match (kind, criteria) {
        (AnswerKind::Choice, Value::Object(options)) if (1..=MAX_OPTIONS).contains(&options.len()) => {
            let labels = (0..options.len()).map(|index| letters(index, options.len()));
            let read = |((key, description), label): ((&String, &Value), String)| {
                validate_name(name, "an option", key)?;
                Ok(option(key, label, description))
            };
            options.iter().zip(labels).map(read).collect()
        }
        (AnswerKind::Choice, _) => Err(unexpected(
            name,
            &format!("an object of 1 to {MAX_OPTIONS} options with a description or null"),
            criteria,
        )),
        (AnswerKind::Score, Value::Array(levels)) if (2..=MAX_LEVELS).contains(&levels.len()) => {
            let texts: Vec<String> = levels.iter().map(as_text).collect();
            for (index, text) in texts.iter().enumerate() {
                if text.trim().is_empty() {
                    return Err(Error::invalid(format!(
                        "{name}[{index}]: expected the description of a level, got nothing"
                    )));
                }
                if let Some(first) = texts.iter().take(index).position(|other| other == text) {
                    return Err(Error::invalid(format!("{name}[{index}]: the same level as {name}[{first}]")));
                }
            }
            let level = |(index, level): (usize, &Value)| option(&index.to_string(), index.to_string(), level);
            Ok(levels.iter().enumerate().map(level).collect())
        }
        (AnswerKind::Score, _) => {
            Err(unexpected(name, &format!("an array of 2 to {MAX_LEVELS} levels, the lowest one first"), criteria))
        }
        (AnswerKind::Noul, Value::Null) => {
            Ok(vec![option("true", "Yes".to_owned(), &Value::Null), option("false", "No".to_owned(), &Value::Null)])
        }
        (AnswerKind::Noul, Value::Object(map)) if map.keys().all(|key| key == "true" || key == "false") => {
            let described =
                |key: &str, label: &str| option(key, label.to_owned(), map.get(key).unwrap_or(&Value::Null));
            Ok(vec![described("true", "Yes"), described("false", "No")])
        }
        (AnswerKind::Noul, _) => Err(unexpected(name, "an object with the descriptions of true and false", criteria)),
    }
}

/// The letters of an option among `n`: one, or two if there are too many for one.
fn letters(index: usize, n: usize) -> String {
    let letter = |number: usize| char::from(b'A' + u8::try_from(number % 26).unwrap_or(0));
    if n <= 26 { letter(index).to_string() } else { [letter(index / 26), letter(index)].iter().collect() }
}

/// Refuses a name that is empty, long, or has control characters. `what`: what it is the name of.
fn validate_name(field: &str, what: &str, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        let expected = format!("{what} of 1 to {MAX_NAME} bytes without control characters");
        return Err(unexpected(field, &expected, &name.into()));
    }
    Ok(())
}

/// Refuses `questions` in which an object has a key twice. `serde_json`'s maps keep the last one.
pub(super) fn refuse_repeated_keys(request: &[u8]) -> Result<()> {
    #[derive(serde::Deserialize)]
    struct QuestionsOnly {
        #[serde(default, rename = "questions")]
        _questions: Option<UniqueKeys>,
    }
    let request = request.strip_prefix("\u{FEFF}".as_bytes()).unwrap_or(request);
    match serde_json::from_slice::<QuestionsOnly>(request) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::invalid(format!("questions: {error}"))),
    }
}

/// A value of any type, no object of which has a key twice.
struct UniqueKeys;

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<UniqueKeys, D::Error> {
        deserializer.deserialize_any(UniqueKeys)
    }
}

impl<'de> Visitor<'de> for UniqueKeys {
    type Value = UniqueKeys;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_bool<E>(self, _: bool) -> std::result::Result<UniqueKeys, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> std::result::Result<UniqueKeys, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> std::result::Result<UniqueKeys, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> std::result::Result<UniqueKeys, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> std::result::Result<UniqueKeys, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> std::result::Result<UniqueKeys, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<UniqueKeys, A::Error> {
        while items.next_element::<UniqueKeys>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> std::result::Result<UniqueKeys, A::Error> {
        let mut seen = HashSet::new();
        while let Some((key, _)) = members.next_entry::<String, UniqueKeys>()? {
            if seen.contains(&key) {
                return Err(A::Error::custom(format!("expected different names, got {} twice", show(&key.into()))));
            }
            seen.insert(key);
        }
        Ok(self)
    }
}
