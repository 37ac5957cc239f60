//! Decisions: `choices` and `questions` as questions of the engine.

use std::sync::Arc;

use crate::api::prompts::{QuestionTokens, ServingModel};
use crate::api::wire::request::{AskedQuestion, Choices, CompletionRequest, DecisionModel};
use crate::engine::{Question, Questions};
use crate::error::Result;

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
        temperature: temperature(asked, serving),
    };
    let orders = asked.iter().flat_map(AskedQuestion::orders).map(|(asked, _)| asked);
    (!asked.is_empty()).then(|| orders.zip(tokens).map(question).collect())
}

/// The number that divides a question's logits: that of the request, of the model's file, or 1.
pub(super) fn temperature(asked: &AskedQuestion, serving: &ServingModel) -> f32 {
    asked.temperature.or_else(|| temperature_in_file(asked, serving)).unwrap_or(1.0)
}

/// The temperature that calibrates the model's answers to such a question, by llama.cpp's metadata of decision models.
fn temperature_in_file(asked: &AskedQuestion, serving: &ServingModel) -> Option<f32> {
    let (n, kind) = (asked.n_options(), asked.kind.as_str());
    let bucket = DecisionModel::temperature_buckets(asked.model())
        .iter()
        .find(|(most, _)| n <= *most)
        .map_or("", |(_, bucket)| bucket);
    let key = |bucket: &str| serving.model.metadata_of_kind(&format!("decision.temperature.{kind}{bucket}"));
    let temperature = key(bucket).or_else(|| key(""))?.parse::<f32>().ok();
    temperature.filter(|temperature| temperature.is_finite() && *temperature > 0.0)
}
