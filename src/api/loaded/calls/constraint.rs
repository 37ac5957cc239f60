//! The constraints on the completion of a request: its grammar, and the limit on reasoning.

use std::sync::Arc;

use foredraft_base::work::Work;

use crate::api::prompts::ServingModel;
use crate::api::wire::request::{CompletionRequest, RequestGrammar, TriggerKind};
use crate::error::Result;
use crate::grammar::{Grammar, OutputConstraint, PreservingVocabulary, ReasoningRules, Trigger};
use crate::llama::{Token, Vocabulary};

/// The control tokens whose text is part of the completion, sorted.
///
/// # Errors
/// A text cannot be tokenized.
pub(super) fn preserved_tokens(request: &CompletionRequest, serving: &ServingModel) -> Result<Arc<[Token]>> {
    let mut tokens = Vec::new();
    for text in &request.constraint.preserved_tokens {
        tokens.extend(single_token(text, serving)?);
    }
    tokens.sort_unstable();
    tokens.dedup();
    Ok(tokens.into())
}

/// Compiles the constraint of a request. `preserved`: see [`preserved_tokens`]. `work` counts the steps.
///
/// # Errors
/// The grammar or a trigger is invalid, or a text cannot be tokenized, or `work` has ended.
pub(super) fn compile(
    request: &CompletionRequest,
    serving: &ServingModel,
    preserved: &Arc<[Token]>,
    work: &Work,
) -> Result<Option<OutputConstraint>> {
    let options = &request.constraint;
    let vocabulary = Arc::clone(&serving.model) as Arc<dyn Vocabulary>;
    let vocabulary = Arc::new(PreservingVocabulary::new(vocabulary, Arc::clone(preserved)));
    let mut constraint = match &request.grammar {
        Some(given) => {
            let (mut tree, mut root) = match given {
                RequestGrammar::Gbnf(text) => {
                    let (tree, root) = Grammar::read(vocabulary.as_ref(), text, work)?;
                    (Arc::new(tree), root)
                }
                RequestGrammar::Tree(tree, root) => (Arc::clone(tree), *root),
            };
            if options.is_behind_reasoning {
                let ends: Vec<&str> = options.reasoning_ends.iter().map(String::as_str).collect();
                root = Arc::make_mut(&mut tree).behind_reasoning(&ends, root);
            }
            let mut grammar = Grammar::from_tree(Arc::clone(&vocabulary) as Arc<dyn Vocabulary>, tree, root, work)?;
            if !options.grammar_prefix.is_empty() {
                grammar.accept_prefix(options.grammar_prefix.as_bytes(), work)?;
            }
            let constraint = OutputConstraint::from(grammar);
            Some(match options.grammar_lazy {
                true => constraint.with_triggers(&triggers(request, serving, preserved)?)?,
                false => constraint,
            })
        }
        None => None,
    };
    if let (false, Some(end)) = (options.reasoning_start.is_empty(), options.reasoning_ends.first()) {
        let forced = format!("{}{end}", options.reasoning_message);
        let rules = ReasoningRules {
            start: options.reasoning_start.clone(),
            ends: options.reasoning_ends.clone(),
            budget: options.reasoning_budget,
            forced: serving.vocab().tokenize(forced.as_bytes(), false, true)?,
        };
        let any = constraint.unwrap_or_else(|| OutputConstraint::none(vocabulary));
        constraint = Some(any.with_reasoning(rules, &options.generation_prompt));
    }
    Ok(constraint)
}

/// The triggers of a lazy grammar. As in llama-server, a word that is a preserved token is a trigger only as that token.
fn triggers(request: &CompletionRequest, serving: &ServingModel, preserved: &[Token]) -> Result<Vec<Trigger>> {
    let mut triggers = Vec::new();
    for trigger in &request.constraint.grammar_triggers {
        let value = trigger.value.clone();
        triggers.push(match trigger.kind {
            TriggerKind::Beginning => Trigger::Beginning(value),
            TriggerKind::Pattern => Trigger::Pattern(value),
            TriggerKind::FullPattern => Trigger::FullPattern(value),
            TriggerKind::Token => {
                match trigger.token.map_or_else(|| single_token(&value, serving), |id| Ok(Some(id)))? {
                    Some(token) => Trigger::Token(token),
                    None => Trigger::Word(value),
                }
            }
            TriggerKind::Word => match single_token(&value, serving)?.filter(|token| preserved.contains(token)) {
                Some(token) => Trigger::Token(token),
                None => Trigger::Word(value),
            },
        });
    }
    Ok(triggers)
}

/// The token that a text consists of, if it is a single one.
fn single_token(text: &str, serving: &ServingModel) -> Result<Option<Token>> {
    let tokens = serving.vocab().tokenize(text.as_bytes(), false, true)?;
    Ok(match tokens.as_slice() {
        [token] => Some(*token),
        _ => None,
    })
}
