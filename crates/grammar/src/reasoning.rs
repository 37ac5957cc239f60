//! Where a completion reasons, and the limit on that: a state machine over its text, so a pure function of the completion.
//!
//! As llama.cpp's `common/reasoning-budget`, except that tags are found in the text and not in token ids, because a tag that is not a token
//! of its own can be written with various tokens.

use foredraft_base::Token;

/// The rules of a completion's reasoning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasoningRules {
    /// The text after which the model reasons. Not empty.
    pub start: String,
    /// The texts that end reasoning. Not empty, none of them is.
    pub ends: Vec<String>,
    /// The most tokens of one piece of reasoning; `None`: any number.
    pub budget: Option<u32>,
    /// The tokens that end reasoning when the budget is used up.
    pub forced: Vec<Token>,
}

/// The state of a completion's reasoning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReasoningState {
    phase: ReasoningPhase,
    /// The end of the text, as far as it may become a tag.
    tail: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReasoningPhase {
    /// The model does not reason.
    Outside,
    /// It reasons, and may do so for this many more tokens.
    Inside(Option<u32>),
    /// The budget is used up within a character.
    InCharacter,
    /// This many of the forced tokens were written.
    Forcing(usize),
}

/// Whether a completion reasons, as the marks of a tree say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reasoning {
    /// It does not.
    Nowhere,
    /// It reasons, or has begun a call inside of reasoning.
    Possible,
    /// It reasons, whatever follows.
    Certain,
}

/// The effect of a text on the grammar.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum VisibleText {
    /// The text is part of reasoning.
    Nothing,
    /// The text belongs to the rest of the completion.
    All,
    /// It ends reasoning. The end's own text, with its length, and what follows it.
    Ended(Vec<u8>, usize),
}

impl ReasoningState {
    /// The state of an empty completion after a prompt that ends with `prefix`.
    pub(crate) fn new(rules: &ReasoningRules, prefix: &[u8]) -> ReasoningState {
        let mut state = ReasoningState { phase: ReasoningPhase::Outside, tail: Vec::new() };
        state.read(rules, prefix);
        if state.phase == ReasoningPhase::Inside(Some(0)) {
            state.force(rules);
        }
        state
    }

    /// The token that must come next.
    pub(crate) fn forced(&self, rules: &ReasoningRules) -> Option<Token> {
        match self.phase {
            ReasoningPhase::Forcing(at) => rules.forced.get(at).copied(),
            _ => None,
        }
    }

    /// Whether the model reasons.
    pub(crate) fn is_inside(&self) -> bool {
        self.phase != ReasoningPhase::Outside
    }

    /// Advances past a token with this text.
    pub(crate) fn accept(&mut self, rules: &ReasoningRules, text: &[u8]) -> VisibleText {
        let was_inside = self.is_inside();
        let seen = self.read(rules, text);
        match self.phase {
            ReasoningPhase::Inside(left) if was_inside => {
                let left = left.map(|left| left.saturating_sub(1));
                self.phase = ReasoningPhase::Inside(left);
                if left == Some(0) {
                    self.force(rules);
                }
            }
            ReasoningPhase::Inside(Some(0)) => self.force(rules),
            ReasoningPhase::InCharacter => self.force(rules),
            ReasoningPhase::Forcing(at) => {
                // The last forced token is the end's. If it is not, for instance because it is empty, the model goes on.
                self.phase =
                    if at + 1 < rules.forced.len() { ReasoningPhase::Forcing(at + 1) } else { ReasoningPhase::Outside };
            }
            ReasoningPhase::Inside(_) | ReasoningPhase::Outside => {}
        }
        match (was_inside, seen) {
            (false, _) => VisibleText::All,
            (true, Some((ended, n_end))) => VisibleText::Ended(ended, n_end),
            (true, None) if self.is_inside() => VisibleText::Nothing,
            (true, None) => VisibleText::Ended(Vec::new(), 0),
        }
    }

    /// Advances past a token with this text, behind which the completion reasons as the marks of a tree say. The budget waits for a call that
    /// has begun inside of reasoning.
    pub(crate) fn follow(&mut self, rules: &ReasoningRules, text: &[u8], reasoning: Reasoning) {
        self.tail.extend_from_slice(text);
        let surplus = self.tail.len().saturating_sub(4);
        self.tail.drain(..surplus);
        self.phase = match self.phase {
            ReasoningPhase::Forcing(at) if at + 1 < rules.forced.len() => ReasoningPhase::Forcing(at + 1),
            _ if reasoning == Reasoning::Nowhere => ReasoningPhase::Outside,
            ReasoningPhase::Forcing(_) => ReasoningPhase::Inside(None),
            ReasoningPhase::Outside => ReasoningPhase::Inside(rules.budget),
            ReasoningPhase::Inside(left) => ReasoningPhase::Inside(left.map(|left| left.saturating_sub(1))),
            ReasoningPhase::InCharacter => ReasoningPhase::Inside(Some(0)),
        };
        if self.phase == ReasoningPhase::Inside(Some(0)) && reasoning == Reasoning::Certain {
            self.force(rules);
        }
    }

    /// The state at the beginning of a completion that reasons as the marks of a tree say.
    pub(crate) fn marked(rules: &ReasoningRules, reasoning: Reasoning) -> ReasoningState {
        let mut state = ReasoningState { phase: ReasoningPhase::Outside, tail: Vec::new() };
        state.follow(rules, b"", reasoning);
        state
    }

    /// Ends reasoning as if the budget were used up, when the marks of a tree say that it is certain. Returns whether the model reasons.
    pub(crate) fn end_marked(&mut self, rules: &ReasoningRules, reasoning: Reasoning) -> bool {
        let reasons = matches!(self.phase, ReasoningPhase::Inside(_));
        if reasons {
            self.phase = ReasoningPhase::Inside(Some(0));
            if reasoning == Reasoning::Certain {
                self.force(rules);
            }
        }
        reasons
    }

    /// Ends reasoning as if the budget were used up. Returns whether the model reasons.
    pub(crate) fn end_now(&mut self, rules: &ReasoningRules) -> bool {
        let reasons = matches!(self.phase, ReasoningPhase::Inside(_));
        if reasons {
            self.force(rules);
        }
        reasons
    }

    /// Lets the model go on, because the forced token is impossible.
    pub(crate) fn give_up(&mut self) {
        self.phase = ReasoningPhase::Inside(None);
    }

    fn force(&mut self, rules: &ReasoningRules) {
        self.phase = match (is_inside_character(&self.tail), rules.forced.is_empty()) {
            (_, true) => ReasoningPhase::Outside,
            (true, false) => ReasoningPhase::InCharacter,
            (false, false) => ReasoningPhase::Forcing(0),
        };
    }

    /// Reads text. Returns the text from the end of reasoning on, if it ends here and does not begin again.
    fn read(&mut self, rules: &ReasoningRules, text: &[u8]) -> Option<(Vec<u8>, usize)> {
        let mut ended: Option<(Vec<u8>, usize)> = None;
        for &byte in text {
            self.tail.push(byte);
            if let Some((ended, _)) = &mut ended {
                ended.push(byte);
            }
            if self.is_inside() {
                let ends = rules.ends.iter().filter(|end| self.tail.ends_with(end.as_bytes()));
                if let Some(end) = ends.max_by_key(|end| end.len()) {
                    ended = Some((end.as_bytes().to_vec(), end.len()));
                    self.phase = ReasoningPhase::Outside;
                    self.tail.clear();
                }
            } else if self.tail.ends_with(rules.start.as_bytes()) {
                ended = None;
                self.phase = ReasoningPhase::Inside(rules.budget);
                self.tail.clear();
            }
        }
        let longest = rules.ends.iter().map(String::len).chain([rules.start.len(), 4]).max().unwrap_or(4);
        let surplus = self.tail.len().saturating_sub(longest);
        self.tail.drain(..surplus);
        ended
    }
}

/// Whether bytes end within a UTF-8 character.
fn is_inside_character(bytes: &[u8]) -> bool {
    (1..=bytes.len().min(3)).any(|len| {
        let end = bytes.get(bytes.len() - len..).unwrap_or(&[]);
        matches!(std::str::from_utf8(end), Err(error) if error.valid_up_to() == 0 && error.error_len().is_none())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(budget: Option<u32>) -> ReasoningRules {
        let ends = vec!["</think>".to_owned(), "<tool_call>".to_owned()];
        ReasoningRules { start: "<think>".to_owned(), ends, budget, forced: vec![7, 8] }
    }

    #[test]
    fn tags_are_found_across_tokens() {
        let rules = rules(None);
        let mut state = ReasoningState::new(&rules, b"assistant\n");
        assert_eq!(state.accept(&rules, b"<thi"), VisibleText::All);
        assert_eq!(state.accept(&rules, b"nk>\n"), VisibleText::All);
        assert!(state.is_inside());
        assert_eq!(state.accept(&rules, b"a</thi"), VisibleText::Nothing);
        assert_eq!(state.accept(&rules, b"nk>\n\nx"), VisibleText::Ended(b"</think>\n\nx".to_vec(), 8));
        assert!(!state.is_inside());
        assert_eq!(state.accept(&rules, b"</think>"), VisibleText::All);
        let mut state = ReasoningState::new(&rules, b"assistant\n<think>\n");
        assert!(state.is_inside());
        assert_eq!(state.accept(&rules, b"<tool_call>{"), VisibleText::Ended(b"<tool_call>{".to_vec(), 11));
        assert_eq!(state.accept(&rules, b"</think><think>"), VisibleText::All);
        assert!(state.is_inside());
    }

    #[test]
    fn budget_forces_the_end() {
        let rules = rules(Some(2));
        let mut state = ReasoningState::new(&rules, b"<think>");
        for text in ["a", "b"] {
            assert_eq!(state.forced(&rules), None);
            assert_eq!(state.accept(&rules, text.as_bytes()), VisibleText::Nothing);
        }
        assert_eq!(state.forced(&rules), Some(7));
        assert_eq!(state.accept(&rules, b"enough"), VisibleText::Nothing);
        assert_eq!(state.forced(&rules), Some(8));
        assert_eq!(state.accept(&rules, b"</think>"), VisibleText::Ended(b"</think>".to_vec(), 8));
        assert_eq!(state.forced(&rules), None);
        assert!(!state.end_now(&rules));
    }

    #[test]
    fn characters_are_completed_first() {
        let rules = rules(Some(1));
        let mut state = ReasoningState::new(&rules, b"<think>");
        assert_eq!(state.accept(&rules, "é".as_bytes().get(..1).unwrap()), VisibleText::Nothing);
        assert_eq!(state.forced(&rules), None);
        assert_eq!(state.accept(&rules, "é".as_bytes().get(1..).unwrap()), VisibleText::Nothing);
        assert_eq!(state.forced(&rules), Some(7));
    }

    #[test]
    fn no_budget_is_no_reasoning() {
        let rules = rules(Some(0));
        assert_eq!(ReasoningState::new(&rules, b"<think>\n").forced(&rules), Some(7));
        let mut state = ReasoningState::new(&rules, b"");
        assert_eq!(state.accept(&rules, b"<think>"), VisibleText::All);
        assert_eq!(state.forced(&rules), Some(7));
    }
}
