//! Decisions: which of several given texts the model would continue a prompt with, and how probable each of them is; for one question, or
//! for several about the same prompt.
//!
//! The questions are a tree of tokens after the prompt: those that begin alike share the nodes of their beginning, and the choices of each
//! follow its last token. The probability of
//! a choice is the product of its tokens' probabilities, each after the tokens before it. A token's probability is in the row of the node
//! before it, so only nodes that others follow are decoded: a choice of one token needs nothing but its question. The others are decoded as
//! the branches of a draft are ([`DraftTree`](super::step::draft_tree::DraftTree)), as many in one step as there are sequences for them, and
//! nothing of them stays. So a question has the same bits alone and beside others, as a token has after a draft of one and of several branches.
//!
//! The last token of the prompt is decoded again before them, so that no cell that stays depends on the choices. Where decoded
//! tokens cannot be removed, the context is extended by one node after the other instead.

use std::collections::HashMap;
use std::sync::Arc;

use super::event::DecisionScores;
use foredraft_base::error::{Error, Result};
use foredraft_llama::Token;

/// A question: what follows the prompt, and what it decides among.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Its field, for errors.
    pub name: String,
    /// The tokens between the prompt and a choice. Only a question that is asked alone may have none.
    pub tokens: Vec<Token>,
    /// The tokens of each choice; none is empty.
    pub choices: Vec<Vec<Token>>,
    /// Divides the logits. 0 or less counts as 1.
    pub temperature: f32,
}

/// The questions of a request, at least one.
pub type Questions = Arc<[Question]>;

/// A decision while it is made.
pub(super) struct ChoiceDecision {
    questions: Questions,
    /// Node 0 is the prompt. A node comes after the one before it.
    nodes: Vec<ChoiceNode>,
    /// The last node of each choice of each question.
    ends: Vec<Vec<usize>>,
    biases: Vec<(Token, f32)>,
    n_prompt: usize,
    /// The node that the context ends with.
    at: usize,
    /// The nodes that are planned for the step, after `at`.
    planned: Vec<usize>,
    /// Whether the last token of the prompt was decoded beside choices, so that its cell may not stay.
    is_replayed: bool,
    /// Whether the last step has read a row.
    has_progress: bool,
    /// There was no space for choices, so the context is extended instead.
    is_stuck: bool,
    scores: Vec<DecisionScores>,
}

#[derive(Default)]
struct ChoiceNode {
    parent: usize,
    token: Token,
    question: usize,
    /// The next tokens of choices, whose probabilities are in the row after this node.
    children: Vec<usize>,
    /// Whether the row after it is to be read: that of the prompt, and each before a token of a choice.
    is_due: bool,
    /// The log-probability of its token after its parent, if it is one of a choice.
    logprob: f64,
}

/// How logits become probabilities: the request's biases, and a question's temperature.
struct TokenScale<'a> {
    biases: &'a [(Token, f32)],
    temperature: f64,
}

impl ChoiceDecision {
    /// The decision of these questions after a prompt of `n_prompt` tokens.
    ///
    /// # Errors
    /// A question with one of its choices does not fit into the context of `n_ctx` tokens.
    pub(super) fn new(
        questions: Questions,
        biases: Vec<(Token, f32)>,
        n_prompt: usize,
        n_ctx: usize,
    ) -> Result<ChoiceDecision> {
        let mut decision = ChoiceDecision {
            nodes: vec![ChoiceNode { is_due: true, ..ChoiceNode::default() }],
            ends: Vec::with_capacity(questions.len()),
            questions: Arc::clone(&questions),
            biases,
            n_prompt,
            at: 0,
            planned: Vec::new(),
            is_replayed: false,
            has_progress: false,
            is_stuck: false,
            scores: Vec::new(),
        };
        let mut begun = HashMap::new();
        for (number, question) in questions.iter().enumerate() {
            question.validate(n_prompt, n_ctx)?;
            let (last, beginning) =
                question.tokens.split_last().map_or((None, &[][..]), |(last, all)| (Some(last), all));
            let start = beginning
                .iter()
                .fold(0, |at, token| *begun.entry((at, *token)).or_insert_with(|| decision.add(number, at, *token)));
            // The row after its last token is its own.
            let start = last.map_or(start, |last| decision.add(number, start, *last));
            let mut ends = vec![0; question.choices.len()];
            let mut known = HashMap::new();
            // Sorted, so that choices with a common prefix are decoded together.
            let mut sorted: Vec<(&Vec<Token>, &mut usize)> = question.choices.iter().zip(&mut ends).collect();
            sorted.sort_by_key(|(tokens, _)| *tokens);
            for (tokens, end) in sorted {
                *end = tokens.iter().fold(start, |at, token| {
                    *known.entry((at, *token)).or_insert_with(|| {
                        let next = decision.add(number, at, *token);
                        if let Some(parent) = decision.nodes.get_mut(at) {
                            parent.is_due = true;
                            parent.children.push(next);
                        }
                        next
                    })
                });
            }
            decision.ends.push(ends);
        }
        Ok(decision)
    }

    /// Adds a node, and returns its number.
    fn add(&mut self, question: usize, parent: usize, token: Token) -> usize {
        self.nodes.push(ChoiceNode { parent, token, question, ..ChoiceNode::default() });
        self.nodes.len() - 1
    }

    /// Plans at most `room` nodes after the context for the step: the token of each, and the planned node before it, counted from 1.
    /// Without `may_branch` they are one after the other. With `is_whole`, plans all or none.
    pub(super) fn plan(&mut self, room: usize, may_branch: bool, is_whole: bool) -> (Vec<Token>, Vec<usize>) {
        self.planned.clear();
        let (mut tokens, mut parents) = (Vec::new(), Vec::new());
        if self.at != 0 {
            return (tokens, parents);
        }
        let mut places = HashMap::from([(0, 0)]);
        let unread: Vec<usize> = self.unread().filter(|node| *node != 0).collect();
        for unread in unread {
            let way = self.way(unread);
            let n_new = way.iter().filter(|node| !places.contains_key(*node)).count();
            // ggml's attention sums the tokens of a second branch in the order of cells, which have the first one's between them.
            let begins = way.iter().find(|node| !places.contains_key(*node)).and_then(|node| self.nodes.get(*node));
            let branches = begins.is_some_and(|node| places.get(&node.parent) != Some(&self.planned.len()));
            if self.planned.len() + n_new > room || branches && !may_branch {
                if is_whole {
                    self.planned.clear();
                    return (Vec::new(), Vec::new());
                }
                continue;
            }
            for node in way {
                let (Some(ChoiceNode { parent, token, .. }), false) =
                    (self.nodes.get(node), places.contains_key(&node))
                else {
                    continue;
                };
                parents.push(places.get(parent).copied().unwrap_or(0));
                tokens.push(*token);
                self.planned.push(node);
                places.insert(node, self.planned.len());
            }
        }
        self.is_replayed |= !tokens.is_empty();
        (tokens, parents)
    }

    /// The rows of a step that are to be read: the number of the planned node, of which `n_planned` were decoded, and the node. 0 is the
    /// context's end.
    pub(super) fn due(&self, n_planned: usize) -> Vec<(usize, usize)> {
        let nodes = std::iter::once(self.at).chain(self.planned.iter().copied().take(n_planned));
        let is_due = |node: usize| self.nodes.get(node).is_some_and(|node| node.is_due);
        nodes.enumerate().filter(|(_, node)| is_due(*node)).collect()
    }

    /// Whether the row after a planned node, counted from 1, is to be read.
    pub(super) fn needs_row(&self, planned: usize) -> bool {
        let node = planned.checked_sub(1).and_then(|index| self.planned.get(index));
        node.and_then(|node| self.nodes.get(*node)).is_some_and(|node| node.is_due)
    }

    /// Reads the row after a node.
    ///
    /// # Errors
    /// It has no probabilities.
    pub(super) fn read(&mut self, node: usize, logits: &[f32]) -> Result<()> {
        let ChoiceDecision { nodes, questions, biases, has_progress, .. } = self;
        let Some(read) = nodes.get_mut(node) else { return Ok(()) };
        // The row of the prompt is that of the first question, if it has no tokens.
        let scale = TokenScale::of(questions.get(read.question), biases);
        let norm = scale.norm(logits)?;
        (*has_progress, read.is_due) = (true, false);
        for child in std::mem::take(&mut read.children) {
            if let Some(child) = nodes.get_mut(child) {
                child.logprob = scale.logit(logits, child.token) - norm;
            }
        }
        Ok(())
    }

    /// Finishes the decision when every probability is known. Returns the tokens of the most probable choice, the first one of equals, if a
    /// choice continues the prompt itself.
    ///
    /// # Errors
    /// No choice of a question has a probability, because of biases.
    pub(super) fn finish(&mut self) -> Result<Option<Vec<Token>>> {
        if self.unread().next().is_some() {
            return Ok(None);
        }
        let logprob = |end: &usize| {
            let way = self.way(*end);
            way.iter().filter_map(|node| self.nodes.get(*node)).map(|node| node.logprob).sum()
        };
        let scores = self.questions.iter().zip(&self.ends).map(|(question, ends)| {
            let logprobs: Vec<f64> = ends.iter().map(logprob).collect();
            let best = logprobs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if best == f64::NEG_INFINITY {
                return Err(Error::invalid(format!("{}: logit_bias bans all of them", question.name)));
            }
            let total: f64 = logprobs.iter().map(|logprob| (logprob - best).exp()).sum();
            let probs = logprobs.iter().map(|logprob| (logprob - best).exp() / total).collect();
            let choice = logprobs.iter().position(|logprob| *logprob == best).unwrap_or(0);
            Ok(DecisionScores { choice, logprobs, probs, n_tokens: question.tokens.len() })
        });
        self.scores = scores.collect::<Result<_>>()?;
        let first = self.questions.first().filter(|question| question.tokens.is_empty());
        let chosen = first.zip(self.scores.first()).and_then(|(question, scores)| question.choices.get(scores.choice));
        Ok(Some(chosen.cloned().unwrap_or_default()))
    }

    /// The result for each question; none: the decision was not made.
    pub(super) fn into_scores(self) -> Vec<DecisionScores> {
        self.scores
    }

    /// Makes `tokens` the context of the next step, and returns how many of them may stay in the cache. `can_roll_back`: decoded tokens can
    /// be removed.
    pub(super) fn next_context(&mut self, tokens: &mut Vec<Token>, can_roll_back: bool) -> usize {
        tokens.truncate(self.n_prompt);
        // A step with space for choices reads a row at least.
        self.is_stuck |= !std::mem::take(&mut self.has_progress);
        let Some(unread) = self.unread().next() else {
            self.at = 0;
            return self.n_prompt - usize::from(self.is_replayed);
        };
        if can_roll_back && !self.is_stuck {
            self.at = 0;
            return self.n_prompt.saturating_sub(1);
        }
        let way = self.way(unread);
        tokens.extend(way.iter().filter_map(|node| self.nodes.get(*node)).map(|node| node.token));
        // The last node's row is needed. Another way is decoded as it is alone: with the prompt's last token.
        let goes_on = way.contains(&self.at);
        self.at = unread;
        if goes_on || !can_roll_back { tokens.len() } else { self.n_prompt }.saturating_sub(1)
    }

    /// The nodes whose rows are to be read.
    fn unread(&self) -> impl Iterator<Item = usize> + '_ {
        (0..).zip(&self.nodes).filter(|(_, node)| node.is_due).map(|(node, _)| node)
    }

    /// The nodes from the prompt to a node, without the prompt.
    fn way(&self, node: usize) -> Vec<usize> {
        let parent = |at: &usize| self.nodes.get(*at).map(|node| node.parent);
        let mut way: Vec<usize> = std::iter::successors(Some(node), parent).take_while(|at| *at > 0).collect();
        way.reverse();
        way
    }
}

impl Question {
    /// # Errors
    /// It does not fit into the context of `n_ctx` tokens after a prompt of `n_prompt`.
    fn validate(&self, n_prompt: usize, n_ctx: usize) -> Result<()> {
        let n_own = |choice: &Vec<Token>| self.tokens.len() + choice.len();
        let Some(index) = self.choices.iter().position(|choice| n_prompt + n_own(choice) > n_ctx) else {
            return Ok(());
        };
        let n = self.choices.get(index).map_or(0, n_own);
        let name = if self.tokens.is_empty() { format!("{}[{index}]", self.name) } else { self.name.clone() };
        let what = format!("{name}: its {n} tokens and the prompt's {n_prompt} do not fit into the context of {n_ctx}");
        Err(Error::context_full(what, n_prompt + n, n_ctx))
    }
}

impl TokenScale<'_> {
    fn of<'a>(question: Option<&Question>, biases: &'a [(Token, f32)]) -> TokenScale<'a> {
        let temperature = question.map_or(1.0, |question| question.temperature);
        TokenScale { biases, temperature: if temperature > 0.0 { f64::from(temperature) } else { 1.0 } }
    }

    fn bias(&self, token: Token) -> f32 {
        let place = self.biases.binary_search_by_key(&token, |(token, _)| *token);
        place.ok().and_then(|place| self.biases.get(place)).map_or(0.0, |(_, bias)| *bias)
    }

    /// A token's logit with its bias, divided by the temperature.
    fn logit(&self, logits: &[f32], token: Token) -> f64 {
        let logit = usize::try_from(token).ok().and_then(|token| logits.get(token)).copied();
        logit.map_or(f64::NEG_INFINITY, |logit| f64::from(logit + self.bias(token)) / self.temperature)
    }

    /// The logarithm of the sum of all tokens' weights.
    fn norm(&self, logits: &[f32]) -> Result<f64> {
        let all = || (0..).zip(logits).map(|(token, _)| self.logit(logits, token));
        let most = all().fold(f64::NEG_INFINITY, f64::max);
        let norm = most + all().map(|logit| (logit - most).exp()).sum::<f64>().ln();
        if norm.is_finite() { Ok(norm) } else { Err(Error::model("the model's logits are not finite")) }
    }
}

#[cfg(test)]
mod tests;
