//! `decide` of a model that is an encoder of decisions: a score for each option of each question.

use serde_json::{Map, Value, json};

use super::decision::temperature;
use super::embedding::check_length;
use crate::api::loaded::local_engine::{LoadedEngine as _, LocalEngine};
use crate::api::prompts::{PromptInterrupt, marked_prompts};
use crate::api::wire::answer::{success, with_fields};
use crate::api::wire::function::Function;
use crate::api::wire::request::{AnswerKind, AskedQuestion, CompletionRequest, RequestArguments, parse_request};
use crate::api::wire::usage::TokenUsage;
use crate::error::{Error, Result};

impl LocalEngine {
    /// `decide`, without a request that could be polled. Waits for the engine.
    ///
    /// # Errors
    /// The request is invalid, a prompt is too long, or the model's file lacks what its prompts need.
    pub fn decide_by_encoder(&self, request: &[u8]) -> Result<Value> {
        let object = parse_request(request)?;
        let mut arguments = RequestArguments::default();
        arguments.translation.is_decision = true;
        let mut request = CompletionRequest::from_object(&object, self.defaults(), arguments)?;
        request.log(object);
        let serving = self.target();
        request.set_decision_model(serving.decision().as_deref(), true)?;
        let (worker, limits) = self.embedder(Function::Decide.as_str())?;
        let model = request.questions.first().and_then(AskedQuestion::model);
        let model = model.ok_or_else(|| Error::invalid("questions: the model is no encoder of decisions"))?;
        let interrupt = PromptInterrupt::new(&serving, request.options.timeout);
        let prompts = marked_prompts(model, &request.questions, &request.inputs, &serving, &interrupt)?;
        for (asked, prompt) in request.questions.iter().zip(&prompts) {
            check_length(&asked.name(), &prompt.tokens, limits)?;
        }
        let n_tokens = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        let texts = prompts.iter().map(|prompt| prompt.tokens.clone()).collect();
        let rows = worker.embed(texts, true).map_err(|error| error.within(Function::Decide.as_str()))?;
        let answers = request.questions.iter().zip(&prompts).zip(rows).map(|((asked, prompt), rows)| {
            let n_columns = (rows.len() / prompt.tokens.len()).max(1);
            let score = |mark: &usize| rows.get(mark * n_columns + column(asked.kind)).copied().unwrap_or(f32::NAN);
            let scores: Vec<f32> = prompt.marks.iter().map(score).collect();
            (asked.id.clone(), asked.answer(&[&probabilities(&scores, temperature(asked, &serving))]))
        });
        let answers: Map<String, Value> = answers.collect();
        let usage = TokenUsage::of_prompts(n_tokens).of_decision();
        let answer =
            json!({"model": serving.name, "stop": true, "stop_type": "eos", "answers": answers, "usage": usage});
        let tag = request.reply.tag.map(|tag| ("tag", tag));
        Ok(success(with_fields(answer, tag), request.warnings))
    }
}

/// The column of a token's scores for a type of questions, as `llama.cpp` has them.
fn column(kind: AnswerKind) -> usize {
    match kind {
        AnswerKind::Choice => 0,
        AnswerKind::Score => 1,
        AnswerKind::Noul => 2,
    }
}

/// The probabilities of options with these scores.
fn probabilities(scores: &[f32], temperature: f32) -> Vec<f64> {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |score: &f32| (f64::from(score - largest) / f64::from(temperature)).exp();
    let weights: Vec<f64> = scores.iter().map(weight).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}
