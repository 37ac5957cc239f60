//! Decisions: `choices` and `questions` as questions of the engine.

use std::sync::Arc;

use crate::api::prompts::{QuestionTokens, ServingModel};
use crate::api::wire::request::{AskedQuestion, Choices, CompletionRequest};
use crate::engine::{Question, Questions};
use crate::error::{Error, Result};

/// The numbers of options up to which llama.cpp's metadata has a temperature of its own.
const BUCKETS: [(usize, &str); 4] = [(2, ".2"), (5, ".3_5"), (10, ".6_10"), (usize::MAX, ".11")];

/// `choices` as the only question, whose choices continue the prompt itself.
///
/// # Errors
/// The vocabulary has no tokens for a choice.
pub(super) fn choices(choices: &Choices, request: &CompletionRequest, serving: &ServingModel) -> Result<Questions> {
    Ok(Arc::from([Question {
        name: "choices".to_owned(),
        tokens: Vec::new(),
        choices: serving.choice_tokens(choices)?,
        temperature: request.sampling.temperature,
    }]))
}

/// `questions` with their tokens. `None`: the request has none.
pub(super) fn questions(
    asked: &[AskedQuestion],
    tokens: Vec<QuestionTokens>,
    serving: &ServingModel,
) -> Option<Questions> {
    let question = |(asked, (tokens, choices)): (&AskedQuestion, QuestionTokens)| Question {
        name: asked.name(),
        tokens,
        choices,
        temperature: asked.temperature.or_else(|| temperature_in_file(asked, serving)).unwrap_or(1.0),
    };
    (!asked.is_empty()).then(|| asked.iter().zip(tokens).map(question).collect())
}

/// The temperature that calibrates the model's answers to such a question, by llama.cpp's metadata of decision models.
fn temperature_in_file(asked: &AskedQuestion, serving: &ServingModel) -> Option<f32> {
    let (n, kind) = (asked.labels().len(), asked.kind.as_str());
    let bucket = BUCKETS.iter().find(|(most, _)| n <= *most).map_or("", |(_, bucket)| bucket);
    let key = |bucket: &str| serving.model.metadata_of_kind(&format!("decision.temperature.{kind}{bucket}"));
    let temperature = key(bucket).or_else(|| key(""))?.parse::<f32>().ok();
    temperature.filter(|temperature| temperature.is_finite() && *temperature > 0.0)
}

/// # Errors
/// The request has questions, and the model answers such only in a form that this version does not have.
pub(super) fn validate(request: &CompletionRequest, serving: &ServingModel) -> Result<()> {
    let native = serving.model.metadata_of_kind("decision.type").filter(|_| !request.questions.is_empty());
    native.map_or(Ok(()), |native| {
        Err(Error::invalid(format!(
            "questions: the model is a decision model of type {native}, whose prompts and heads this version does not have"
        )))
    })
}
