//! The prompts of native decision models, which a template of the file makes of a state and a question, as in llama.cpp's server.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Map, Value, json};

use super::chat::{RenderInput, Rendered};
use super::chat_format::KnownTemplate;
use super::interrupt::PromptInterrupt;
use super::serving_model::{QuestionTokens, ServingModel};
use crate::api::wire::request::{AskedQuestion, DecisionModel, Inputs, Prompt};
use crate::error::{Error, Result};
use crate::llama::Token;
use foredraft_base::prompt_fit::common_prefix;

/// The beginning that the prompts of all questions have in common, and what follows it for each question, in each order of its options.
pub(super) struct DecisionPrompts {
    pub(super) common: Vec<Token>,
    pub(super) questions: Vec<QuestionTokens>,
}

/// Renders and tokenizes the prompts of questions to a model that answers with labels.
///
/// # Errors
/// The file has no template, the template fails, a question has more options than there are labels, or a prompt does not fit.
pub(super) fn prompts(
    model: DecisionModel,
    questions: &[AskedQuestion],
    subject: &DecisionSubject,
    serving: &ServingModel,
    interrupt: &PromptInterrupt,
) -> Result<DecisionPrompts> {
    let vocab = serving.vocab();
    let token = |label: &str| match vocab.tokenize_data(label.as_bytes(), false).ok()?[..] {
        [token] => Some(token),
        _ => None,
    };
    let (texts, labels): (Vec<String>, Vec<Token>) = model.labels(token).into_iter().unzip();
    let shown: &[String] = if model.shows_labels() { &texts } else { &[] };
    check_options(questions, labels.len())?;
    let all = questions.iter().map(|question| Value::from(question.variables(shown, false)));
    let all = (model == DecisionModel::Nimble).then(|| all.collect::<Value>());
    let template = DecisionTemplate::new(model, subject, all, serving, interrupt)?;
    let mut prompts: Option<DecisionPrompts> = None;
    for (question, is_reversed) in questions.iter().flat_map(AskedQuestion::orders) {
        let tokens = template.tokens(question.variables(shown, is_reversed))?;
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

/// Refuses a question with more options than `most`, for which the model has labels.
pub(super) fn check_options(questions: &[AskedQuestion], most: usize) -> Result<()> {
    let Some(question) = questions.iter().find(|question| question.n_labels() > most) else { return Ok(()) };
    let (name, n) = (question.name(), question.n_labels());
    Err(Error::invalid(format!("{name}.criteria: {n} options, and the model has labels for {most}")))
}

/// What a native decision model is asked about.
pub(super) struct DecisionSubject<'a> {
    state: &'a Value,
    /// Texts of the request may be control tokens.
    parse_special: bool,
}

impl DecisionSubject<'_> {
    /// The subject of a request.
    ///
    /// # Errors
    /// It is a text, or has pictures.
    pub(super) fn of(inputs: &Inputs) -> Result<DecisionSubject<'_>> {
        let chat = inputs.all.first().and_then(|input| match &input.prompt {
            Prompt::Messages(chat) => Some((chat, chat.state.as_deref()?)),
            Prompt::Text(_) | Prompt::Infill(_) => None,
        });
        let not_a_chat = || Error::invalid("prompt: a decision model is asked about state or messages");
        let (chat, state) = chat.ok_or_else(not_a_chat)?;
        if let Some(first) = chat.media.first() {
            return Err(Error::invalid(format!("{}: decision models take no {}", first.name, first.source.kind())));
        }
        Ok(DecisionSubject { state, parse_special: inputs.parse_special })
    }
}

/// The template of the model's file, with what all prompts of a request have in common.
pub(super) struct DecisionTemplate<'a> {
    known: Arc<KnownTemplate>,
    common: Map<String, Value>,
    sorts_keys: bool,
    parse_special: bool,
    serving: &'a ServingModel,
    interrupt: &'a PromptInterrupt,
}

impl<'a> DecisionTemplate<'a> {
    /// `all`: the questions, for a model that reads them with each.
    ///
    /// # Errors
    /// The file has no template, or it is invalid.
    pub(super) fn new(
        model: DecisionModel,
        subject: &DecisionSubject,
        all: Option<Value>,
        serving: &'a ServingModel,
        interrupt: &'a PromptInterrupt,
    ) -> Result<DecisionTemplate<'a>> {
        let none = || Error::invalid("questions: the decision model's file has no chat template named systemone");
        let source = serving.model.decision_template().ok_or_else(none)?;
        let known = serving.template(Some(&source), false, &interrupt.for_template());
        let known = known.map_err(|error| interrupt.explained(error))?;
        let common = [("state", Some(subject.state.clone())), ("images", Some(json!([]))), ("questions", all)];
        let common = common.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let (common, sorts_keys) = (common.collect(), model == DecisionModel::Lev);
        Ok(DecisionTemplate { known, common, sorts_keys, parse_special: subject.parse_special, serving, interrupt })
    }

    /// The prompt of the question with these variables.
    ///
    /// # Errors
    /// The template fails, or the request has to end.
    pub(super) fn tokens(&self, own: Map<String, Value>) -> Result<Vec<Token>> {
        self.interrupt.check()?;
        let (mut kwargs, vocab) = (self.common.clone(), self.serving.vocab());
        kwargs.extend(own);
        if self.sorts_keys {
            kwargs.values_mut().for_each(Value::sort_all_objects);
        }
        let asked = self.interrupt.for_template();
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
        let rendered = match self.parse_special {
            true => self.known.template.render(&input).map(|text| Rendered { text, ..Rendered::default() }),
            false => self.known.template.render_tainted(&input, vocab.specials()),
        };
        let Rendered { text, tainted, marks } = rendered.map_err(|error| self.interrupt.explained(error))?;
        vocab.tokenize_tainted_alone(text.as_bytes(), &tainted, &marks)
    }
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
