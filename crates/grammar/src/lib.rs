//! Grammars in llama.cpp's notation (GBNF): which tokens may come next.
//!
//! llama.cpp's grammar code is not used, because it prints errors to stderr, throws and asserts, cannot be cancelled, has no
//! limit on time or memory, and copies every rule for each draft. This implementation accepts the same grammars and allows
//! the same tokens (`tests/against_llama/grammar.rs` checks it), reports the position of errors, bounds the work per token, and has
//! cheap copies.
//!
//! - [`tree`]: rules as a tree of nodes. `scanner`, `parse`, `rules`: GBNF to such a tree. `automaton`: matches the output against it.
//! - `read`: what a completion says, by the marks of the tree.
//! - `continuation`: text that must come next, as tokens.
//! - [`pattern`]: regular expressions.
//! - `trigger`: where a lazy grammar begins. `reasoning`: where the model reasons, and the limit on that. `constraint`: all of
//!   these together.

mod automaton;
mod constraint;
mod continuation;
mod parse;
pub mod pattern;
mod read;
mod reasoning;
mod rules;
mod scanner;
pub mod tree;
mod trigger;

use std::sync::Arc;

use parking_lot::Mutex;

use self::automaton::{Automaton, GrammarState, TokenMask, ended, refused};
pub use self::constraint::{OutputConstraint, PreservingVocabulary};
pub use self::read::{CompletionReader, ReadEvent};
use self::reasoning::Reasoning;
pub use self::reasoning::ReasoningRules;
use self::tree::{Mark, NodeId, Tree};
pub use self::trigger::Trigger;
use foredraft_base::error::{Error, Result};
use foredraft_base::work::Work;
use foredraft_base::{Token, TokenData, Vocabulary};

/// The longest grammar in bytes.
pub const MAX_GRAMMAR: usize = 1 << 20;

/// The bytes of a prefix between two counts of steps.
const PREFIX_CHUNK: usize = 1 << 10;
/// One candidate among so many tokens of the vocabulary makes a walk through all of them worthwhile.
const TOKENS_PER_CANDIDATE: usize = 1024;

/// A grammar with the state of the output so far.
///
/// It may move between threads, but not be used by several at once. Copies share the cached automaton.
#[derive(Debug, Clone)]
pub struct Grammar {
    vocabulary: Arc<dyn Vocabulary>,
    automaton: Arc<Mutex<Automaton>>,
    state: GrammarState,
}

impl Grammar {
    /// Compiles `gbnf`, which starts with the rule `root`. `work` counts the steps.
    ///
    /// # Errors
    /// `invalid_request`: a syntax error, with line, column and the expected input; or the grammar is too large or too
    /// ambiguous. `cancelled`: `work` was interrupted.
    pub fn new(vocabulary: &Arc<impl Vocabulary + 'static>, gbnf: &str, work: &Work) -> Result<Grammar> {
        let (tree, root) = Grammar::read(vocabulary.as_ref(), gbnf, work)?;
        Grammar::start(Arc::clone(vocabulary) as Arc<dyn Vocabulary>, Arc::new(tree), root, work)
    }

    /// The tree of `gbnf`, and the node of its rule `root`.
    ///
    /// # Errors
    /// As [`Grammar::new`].
    pub fn read(vocabulary: &dyn Vocabulary, gbnf: &str, work: &Work) -> Result<(Tree, NodeId)> {
        let invalid = |why: &str| Error::invalid(format!("grammar: {why}"));
        if !vocabulary.has_text() {
            return Err(invalid("the model has no vocabulary"));
        }
        if gbnf.len() > MAX_GRAMMAR {
            return Err(invalid(&format!("{} bytes are more than the {MAX_GRAMMAR} allowed", gbnf.len())));
        }
        let find_token = |text: &str| match vocabulary.tokenize(text.as_bytes(), true).ok()?.as_slice() {
            [token] => u32::try_from(*token).ok(),
            _ => None,
        };
        parse::parse(gbnf, &find_token, work).map_err(|why| refused(why, work))
    }

    /// A grammar of the texts of the node `root`. `work` counts the steps.
    ///
    /// # Errors
    /// `invalid_request`: the tree is too large, a rule of it has no body, or the grammar is too ambiguous. `cancelled`: `work` was
    /// interrupted.
    pub fn from_tree(
        vocabulary: Arc<dyn Vocabulary>,
        tree: impl Into<Arc<Tree>>,
        root: NodeId,
        work: &Work,
    ) -> Result<Grammar> {
        let tree = tree.into();
        tree.check(root, work).map_err(|why| refused(why, work))?;
        Grammar::start(vocabulary, tree, root, work)
    }

    /// Whether the completion is inside of a mark, whatever follows.
    #[must_use]
    pub fn is_inside(&self, mark: Mark) -> bool {
        self.automaton.lock().is_inside(self.state, mark)
    }

    /// Whether the tree says where the completion reasons, and how far it does so now.
    pub(crate) fn reasons(&self) -> Option<Reasoning> {
        let automaton = self.automaton.lock();
        automaton.tree().has_reasoning().then(|| {
            match (
                automaton.is_inside(self.state, Mark::ReasoningBlock),
                automaton.may_be_inside(self.state, Mark::ReasoningBlock),
            ) {
                (true, _) => Reasoning::Certain,
                (false, true) => Reasoning::Possible,
                (false, false) => Reasoning::Nowhere,
            }
        })
    }

    fn start(vocabulary: Arc<dyn Vocabulary>, tree: Arc<Tree>, root: NodeId, work: &Work) -> Result<Grammar> {
        let mut automaton = Automaton::new(tree, root);
        automaton.meter(Some(work.clone()));
        let state = automaton.start().map_err(|why| refused(why, work))?;
        automaton.meter(None);
        Ok(Grammar { vocabulary, automaton: Arc::new(Mutex::new(automaton)), state })
    }

    /// Whether `token` may come next.
    ///
    /// # Errors
    /// As [`Grammar::filter`].
    pub fn allows(&mut self, token: Token) -> Result<bool> {
        let mut candidate = [TokenData { id: token, logit: 0.0, p: 0.0 }];
        self.filter(&mut candidate)?;
        Ok(candidate.iter().all(|candidate| candidate.logit == 0.0))
    }

    /// Sets the logits of candidates that may not come next to -inf.
    ///
    /// # Errors
    /// `invalid_request`: the grammar rejected an earlier token, or it is too ambiguous.
    pub fn filter(&mut self, candidates: &mut [TokenData]) -> Result<()> {
        if self.state.is_rejected() {
            return Err(Error::invalid("grammar: the output does not match it"));
        }
        let vocabulary = Arc::clone(&self.vocabulary);
        let mask = self.mask(candidates.len()).zip(vocabulary.token_tree());
        self.automaton.lock().begin_work();
        for candidate in candidates {
            let is_allowed = match &mask {
                Some((mask, tree)) => mask.has(tree.rank(candidate.id)),
                None => !self.next(candidate.id)?.is_rejected(),
            };
            if !is_allowed {
                candidate.logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// The tokens that may come next, if that is known or worth finding out for so many candidates. `None` also if it cannot be found
    /// out within the limits: fewer tokens may be.
    fn mask(&mut self, n_candidates: usize) -> Option<TokenMask> {
        let vocabulary = Arc::clone(&self.vocabulary);
        let known = self.automaton.lock().kept_mask(self.state);
        if known.is_some() || n_candidates < 2 || n_candidates * TOKENS_PER_CANDIDATE < vocabulary.n_tokens() {
            return known;
        }
        let tree = vocabulary.token_tree()?;
        self.automaton.lock().begin_work();
        self.rebuild_if_large().ok()?;
        self.automaton.lock().mask(self.state, vocabulary.as_ref(), tree).ok().flatten()
    }

    /// Advances past `token`.
    ///
    /// # Errors
    /// `invalid_request`: the grammar does not allow it here (then no token may follow), or is too ambiguous.
    pub fn accept(&mut self, token: Token) -> Result<()> {
        self.automaton.lock().begin_work();
        self.state = self.next(token)?;
        if self.state.is_rejected() {
            return Err(Error::invalid(format!("grammar: does not allow the token {token} here")));
        }
        Ok(())
    }

    /// Advances past text that is not generated.
    ///
    /// # Errors
    /// As [`Grammar::accept`].
    pub fn accept_text(&mut self, text: &[u8]) -> Result<()> {
        if !self.allows_text(text)? {
            self.state = GrammarState::REJECTED;
            return Err(Error::invalid("grammar: does not allow the text with which the completion begins"));
        }
        let mut automaton = self.automaton.lock();
        self.state =
            automaton.follow_text(self.state, text).map_err(|why| Error::invalid(format!("grammar: {why}")))?;
        Ok(())
    }

    /// Advances past text of the host, whose steps `work` counts.
    ///
    /// # Errors
    /// As [`Grammar::accept`]. `cancelled`: `work` was interrupted.
    pub fn accept_prefix(&mut self, text: &[u8], work: &Work) -> Result<()> {
        self.automaton.lock().meter(Some(work.clone()));
        let chunks = &mut text.chunks(PREFIX_CHUNK);
        let accepted = chunks.try_for_each(|chunk| {
            work.step(chunk.len()).map_err(ended)?;
            self.accept_text(chunk).map_err(|error| work.step(1).err().map_or(error, ended))
        });
        self.automaton.lock().meter(None);
        accepted
    }

    /// Whether `text` may come next.
    ///
    /// # Errors
    /// As [`Grammar::filter`].
    pub fn allows_text(&mut self, text: &[u8]) -> Result<bool> {
        let mut automaton = self.automaton.lock();
        automaton.begin_work();
        let followed = automaton.follow_text(self.state, text);
        followed.map(|state| !state.is_rejected()).map_err(|why| Error::invalid(format!("grammar: {why}")))
    }

    /// The state after `token`. An end-of-generation token does not change it.
    fn next(&mut self, token: Token) -> Result<GrammarState> {
        self.rebuild_if_large()?;
        let followed = self.automaton.lock().follow_in(self.state, self.vocabulary.as_ref(), token);
        followed.map_err(|why| Error::invalid(format!("grammar: {why}")))
    }

    /// Replaces an automaton whose caches have become large.
    fn rebuild_if_large(&mut self) -> Result<()> {
        let rebuilt = self.automaton.lock().rebuilt(self.state);
        if let Some((automaton, state)) = rebuilt.map_err(|why| Error::invalid(format!("grammar: {why}")))? {
            (self.automaton, self.state) = (Arc::new(Mutex::new(automaton)), state);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
