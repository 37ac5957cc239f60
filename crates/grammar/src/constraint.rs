//! The constraints on a completion: a grammar, at once or from a trigger on, and the limit on reasoning.

use std::sync::Arc;

use super::Grammar;
use super::reasoning::{Reasoning, ReasoningRules, ReasoningState, VisibleText};
use super::trigger::{Awaiting, Trigger, TriggerSet};
use foredraft_base::error::Result;
use foredraft_base::{Token, TokenData, TokenTree, Vocabulary};

/// A vocabulary in which some control tokens add their text to a completion.
#[derive(Debug)]
pub struct PreservingVocabulary {
    inner: Arc<dyn Vocabulary>,
    preserved: Arc<[Token]>,
}

impl PreservingVocabulary {
    /// `preserved` is sorted.
    pub fn new(inner: Arc<dyn Vocabulary>, preserved: Arc<[Token]>) -> PreservingVocabulary {
        PreservingVocabulary { inner, preserved }
    }
}

impl Vocabulary for PreservingVocabulary {
    fn n_tokens(&self) -> usize {
        self.inner.n_tokens()
    }

    fn has_text(&self) -> bool {
        self.inner.has_text()
    }

    fn piece(&self, token: Token) -> &[u8] {
        self.inner.piece(token)
    }

    fn text(&self, token: Token) -> &[u8] {
        if self.preserved.binary_search(&token).is_ok() { self.inner.piece(token) } else { self.inner.text(token) }
    }

    fn is_eog(&self, token: Token) -> bool {
        self.inner.is_eog(token)
    }

    /// The preserved tokens are among those that are not in the tree.
    fn token_tree(&self) -> Option<&TokenTree> {
        self.inner.token_tree()
    }

    fn newline(&self) -> Option<Token> {
        self.inner.newline()
    }

    fn tokenize(&self, text: &[u8], parse_special: bool) -> Result<Vec<Token>> {
        self.inner.tokenize(text, parse_special)
    }
}

/// The constraints on a completion, with their state. A pure function of the completion so far, except that [`OutputConstraint::end_reasoning`]
/// changes it from outside.
///
/// A lazy grammar begins with a trigger, which does not count inside of reasoning. A token that would begin the grammar with a text that
/// the grammar does not allow is not allowed. (In llama.cpp it is, and then the completion fails.) If such a token is accepted nevertheless,
/// the grammar does not begin.
///
/// Where the grammar is a tree that marks reasoning, the limit follows these marks, and waits for a call that has begun inside of reasoning.
/// Otherwise it looks for the tags in the text.
///
/// It may move between threads, but not be used by several at once. Copies share the grammar's automaton.
#[derive(Debug, Clone)]
pub struct OutputConstraint {
    vocabulary: Arc<dyn Vocabulary>,
    grammar: Option<Grammar>,
    /// The grammar has not begun.
    awaiting: Option<Awaiting>,
    reasoning: Option<(Arc<ReasoningRules>, ReasoningState)>,
}

impl From<Grammar> for OutputConstraint {
    fn from(grammar: Grammar) -> OutputConstraint {
        let vocabulary = Arc::clone(&grammar.vocabulary);
        OutputConstraint { grammar: Some(grammar), ..OutputConstraint::none(vocabulary) }
    }
}

impl OutputConstraint {
    /// No constraint.
    pub fn none(vocabulary: Arc<dyn Vocabulary>) -> OutputConstraint {
        OutputConstraint { vocabulary, grammar: None, awaiting: None, reasoning: None }
    }

    /// The grammar applies from the first trigger on.
    ///
    /// # Errors
    /// `invalid_request`: a trigger is invalid.
    pub fn with_triggers(self, triggers: &[Trigger]) -> Result<OutputConstraint> {
        Ok(OutputConstraint { awaiting: Some(Awaiting::new(TriggerSet::new(triggers)?)), ..self })
    }

    /// Adds the rules of reasoning, for a completion after a prompt that ends with `prefix`.
    pub fn with_reasoning(self, rules: ReasoningRules, prefix: &str) -> OutputConstraint {
        let state = match self.marked_reasoning() {
            Some(reasoning) => ReasoningState::marked(&rules, reasoning),
            None => ReasoningState::new(&rules, prefix.as_bytes()),
        };
        OutputConstraint { reasoning: Some((Arc::new(rules), state)), ..self }
    }

    /// Ends reasoning as if its budget were used up. Returns whether the completion reasons.
    pub fn end_reasoning(&mut self) -> bool {
        let marked = self.marked_reasoning();
        self.reasoning.as_mut().is_some_and(|(rules, state)| match marked {
            Some(reasoning) => state.end_marked(rules, reasoning),
            None => state.end_now(rules),
        })
    }

    /// Whether any token may come next, as far as this constraint knows without looking at tokens.
    pub fn is_idle(&self) -> bool {
        let applies = self.grammar.is_some() && self.grammar_applies();
        self.forced().is_none() && !applies
    }

    /// Whether `token` may come next.
    ///
    /// # Errors
    /// As [`OutputConstraint::filter`].
    pub fn allows(&mut self, token: Token) -> Result<bool> {
        let mut candidate = [TokenData { id: token, logit: 0.0, p: 0.0 }];
        self.filter(&mut candidate)?;
        Ok(candidate.iter().all(|candidate| candidate.logit == 0.0))
    }

    /// Sets the logits of candidates that may not come next to -inf.
    ///
    /// # Errors
    /// As [`Grammar::filter`].
    pub fn filter(&mut self, candidates: &mut [TokenData]) -> Result<()> {
        let applies = self.grammar_applies();
        if let Some(forced) = self.forced() {
            if !applies || self.grammar.as_mut().map_or(Ok(true), |grammar| grammar.allows(forced))? {
                candidates.iter_mut().filter(|candidate| candidate.id != forced).for_each(forbid);
                return Ok(());
            }
            // A grammar of the whole completion comes first.
            self.reasoning.iter_mut().for_each(|(_, state)| state.give_up());
        }
        match (&mut self.grammar, &self.awaiting) {
            (Some(grammar), None) => grammar.filter(candidates),
            // To look at the whole vocabulary with patterns would take seconds.
            (Some(grammar), Some(awaiting))
                if applies && (candidates.len() == 1 || !awaiting.triggers.has_patterns()) =>
            {
                for candidate in candidates {
                    if begins_wrongly(grammar, awaiting, self.vocabulary.as_ref(), candidate.id)? {
                        forbid(candidate);
                    }
                }
                Ok(())
            }
            (None, _) | (Some(_), Some(_)) => Ok(()),
        }
    }

    /// Advances past `token`.
    ///
    /// # Errors
    /// As [`Grammar::accept`].
    pub fn accept(&mut self, token: Token) -> Result<()> {
        let applies = self.grammar_applies();
        let vocabulary = Arc::clone(&self.vocabulary);
        if vocabulary.is_eog(token) {
            return if self.awaiting.is_some() { Ok(()) } else { self.advance_grammar(token) };
        }
        let text = vocabulary.text(token);
        if self.marked_reasoning().is_some() {
            self.advance_grammar(token)?;
            let reasoning = self.marked_reasoning();
            if let (Some((rules, state)), Some(reasoning)) = (&mut self.reasoning, reasoning) {
                state.follow(rules, text, reasoning);
            }
            return Ok(());
        }
        let visible = match &mut self.reasoning {
            Some((rules, state)) => state.accept(rules, text),
            None => VisibleText::All,
        };
        let Some(awaiting) = &mut self.awaiting else {
            return self.advance_grammar(token);
        };
        match visible {
            VisibleText::Nothing => Ok(()),
            VisibleText::Ended(text, n_end) => {
                // The end's own text can be a trigger, too.
                let (end, rest) = text.split_at_checked(n_end).unwrap_or((&text, &[]));
                self.advance_awaiting(end)?;
                self.awaiting.iter_mut().for_each(Awaiting::begin_again);
                match self.awaiting.is_some() || rest.is_empty() {
                    true => self.advance_awaiting(rest),
                    false => self.grammar.as_mut().map_or(Ok(()), |grammar| grammar.accept_text(rest)),
                }
            }
            VisibleText::All if !applies => Ok(()),
            VisibleText::All if awaiting.triggers.has_token(token) => {
                if self.grammar.as_mut().map_or(Ok(false), |grammar| grammar.allows(token))? {
                    self.begin_grammar();
                    self.advance_grammar(token)?;
                }
                Ok(())
            }
            VisibleText::All => self.advance_awaiting(text),
        }
    }

    /// The grammar, if it has begun.
    pub(super) fn applied_grammar(&self) -> Option<&Grammar> {
        self.grammar.as_ref().filter(|_| self.awaiting.is_none())
    }

    /// The token that reasoning ends with, if it comes next.
    pub(super) fn forced(&self) -> Option<Token> {
        self.reasoning.as_ref().and_then(|(rules, state)| state.forced(rules))
    }

    /// Whether the grammar or its triggers apply now. Those of a lazy grammar do not apply inside of reasoning.
    fn grammar_applies(&self) -> bool {
        self.awaiting.is_none() || !self.reasoning.as_ref().is_some_and(|(_, state)| state.is_inside())
    }

    /// How far the completion reasons, if the grammar applies from its beginning and says so with marks.
    fn marked_reasoning(&self) -> Option<Reasoning> {
        self.applied_grammar()?.reasons()
    }

    fn advance_grammar(&mut self, token: Token) -> Result<()> {
        self.grammar.as_mut().map_or(Ok(()), |grammar| grammar.accept(token))
    }

    /// Advances past text that may begin the grammar.
    fn advance_awaiting(&mut self, text: &[u8]) -> Result<()> {
        let Some(awaiting) = &mut self.awaiting else { return Ok(()) };
        let search = awaiting.search(text);
        let Some(begun) = &search.begun else {
            awaiting.push(text, &search);
            return Ok(());
        };
        let Some(grammar) = &mut self.grammar else { return Ok(()) };
        if grammar.allows_text(begun)? {
            grammar.accept_text(begun)?;
            self.begin_grammar();
            return Ok(());
        }
        awaiting.push(text, &search);
        Ok(())
    }

    /// From now on the grammar alone counts: tags of reasoning can be a part of arguments.
    fn begin_grammar(&mut self) {
        self.awaiting = None;
        self.reasoning = None;
    }
}

/// Whether `token` begins the grammar with a text that the grammar does not allow.
fn begins_wrongly(grammar: &Grammar, awaiting: &Awaiting, vocabulary: &dyn Vocabulary, token: Token) -> Result<bool> {
    if vocabulary.is_eog(token) {
        return Ok(false);
    }
    if awaiting.triggers.has_token(token) {
        return Ok(!grammar.clone().allows(token)?);
    }
    match awaiting.search(vocabulary.text(token)).begun {
        None => Ok(false),
        Some(text) => Ok(!grammar.clone().allows_text(&text)?),
    }
}

fn forbid(candidate: &mut TokenData) {
    candidate.logit = f32::NEG_INFINITY;
}

#[cfg(test)]
mod tests;
