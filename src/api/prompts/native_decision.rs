//! The prompts of native decision models, which a template of the file makes of a state and a question, as in llama.cpp's server.

use std::time::SystemTime;

use serde_json::{Map, Value, json};

use super::chat::{RenderInput, Rendered};
use super::interrupt::PromptInterrupt;
use super::serving_model::{QuestionTokens, ServingModel};
use crate::api::wire::request::{AskedQuestion, DecisionModel};
use crate::error::{Error, Result};
use crate::llama::Token;
use foredraft_base::prompt_fit::common_prefix;

/// The beginning that the prompts of all questions have in common, and what follows it for each question, in each order of its options.
pub(super) struct DecisionPrompts {
    pub(super) common: Vec<Token>,
    pub(super) questions: Vec<QuestionTokens>,
}

/// Renders and tokenizes the prompts of questions about a state. `parse_special`: texts of the request may be control tokens.
///
/// # Errors
/// The file has no template, the template fails, a question has more options than there are labels, or a prompt does not fit.
pub(super) fn prompts(
    model: DecisionModel,
    questions: &[AskedQuestion],
    state: &Value,
    parse_special: bool,
    serving: &ServingModel,
    interrupt: &PromptInterrupt,
) -> Result<DecisionPrompts> {
    let none = || Error::invalid("questions: the decision model's file has no chat template named systemone");
    let source = serving.model.decision_template().ok_or_else(none)?;
    let asked = interrupt.for_template();
    let known = serving.template(Some(&source), false, &asked).map_err(|error| interrupt.explained(error))?;
    let vocab = serving.vocab();
    let token = |label: &str| match vocab.tokenize_data(label.as_bytes(), false).ok()?[..] {
        [token] => Some(token),
        _ => None,
    };
    let (texts, labels): (Vec<String>, Vec<Token>) = model.labels(token).into_iter().unzip();
    let shown: &[String] = if model.shows_labels() { &texts } else { &[] };
    if let Some(question) = questions.iter().find(|question| question.n_labels() > labels.len()) {
        let (name, n, most) = (question.name(), question.n_labels(), labels.len());
        return Err(Error::invalid(format!("{name}.criteria: {n} options, and the model has labels for {most}")));
    }
    let all = questions.iter().map(|question| Value::from(question.variables(shown, false)));
    let all = (model == DecisionModel::Nimble).then(|| all.collect::<Value>());
    let common = [("state", Some(state.clone())), ("images", Some(json!([]))), ("questions", all)];
    let common = common.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let common: Map<String, Value> = common.collect();
    let render = |own: Map<String, Value>| {
        let mut kwargs = common.clone();
        kwargs.extend(own);
        if model == DecisionModel::Lev {
            kwargs.values_mut().for_each(Value::sort_all_objects);
        }
        let input = RenderInput {
            messages: &[],
            add_generation_prompt: false,
            bos_token: "",
            eos_token: "",
            tools: None,
            kwargs: &kwargs,
            now: SystemTime::now(),
            interrupt: Some(&asked),
        };
        let rendered = match parse_special {
            true => known.template.render(&input).map(|text| Rendered { text, ..Rendered::default() }),
            false => known.template.render_tainted(&input, vocab.specials()),
        };
        rendered.map_err(|error| interrupt.explained(error))
    };
    let mut prompts: Option<DecisionPrompts> = None;
    for (question, is_reversed) in questions.iter().flat_map(AskedQuestion::orders) {
        interrupt.check()?;
        let Rendered { text, tainted, marks } = render(question.variables(shown, is_reversed))?;
        let tokens = vocab.tokenize_tainted_alone(text.as_bytes(), &tainted, &marks)?;
        if tokens.len() >= serving.n_ctx {
            let (name, n, n_ctx) = (question.name(), tokens.len(), serving.n_ctx);
            let message = format!("{name}: {n} tokens do not fit into the context of {n_ctx}");
            return Err(Error::context_full(message, n, n_ctx));
        }
        let choices = labels.iter().take(question.n_labels()).map(|label| vec![*label]).collect();
        let found = prompts.get_or_insert_with(|| DecisionPrompts { common: tokens.clone(), questions: Vec::new() });
        found.add(&tokens, choices);
    }
    let whole = prompts.filter(|prompts| !prompts.common.is_empty());
    whole.ok_or_else(|| Error::invalid("questions: the prompts of the model's template have no common beginning"))
}

impl DecisionPrompts {
    /// Adds the prompt of a question, of which at least one token is its own.
    fn add(&mut self, tokens: &[Token], choices: Vec<Vec<Token>>) {
        let n_common = common_prefix(&self.common, tokens).min(tokens.len().saturating_sub(1));
        let own = self.common.split_off(n_common);
        for (rest, _) in self.questions.iter_mut().filter(|_| !own.is_empty()) {
            rest.splice(..0, own.iter().copied());
        }
        self.questions.push((tokens.get(n_common..).unwrap_or(&[]).to_vec(), choices));
    }
}
