//! A draft model that says what was recorded.

use std::cell::RefCell;

use super::machine::Machine;
use super::trace::{Choice, Trace};
use super::{Kind, pass};
use crate::llama::Token;
use crate::sampling::Sampler;
use crate::speculative::policy::another_round_pays;
use crate::speculative::{DraftRequest, Drafter, DrafterKind, Settings};

/// In place of a token that is wrong: no text has it.
const WRONG: Token = 1;

/// An output, and at each of its positions what the near and the far draft model choose.
type Replayed = (Vec<Token>, Vec<Choice>, Vec<Choice>);

thread_local! {
    /// What the requests in the slots are of.
    static TRACES: RefCell<Vec<Replayed>> = const { RefCell::new(Vec::new()) };
}

/// The draft model.
pub(super) struct ReplayedDraft {
    kind: Kind,
    machine: Machine,
    /// Tokens of each slot's context that are in its cache.
    known: Vec<usize>,
}

impl ReplayedDraft {
    pub(super) fn new(n_slots: usize, kind: Kind, machine: &Machine) -> ReplayedDraft {
        ReplayedDraft { kind, machine: machine.clone(), known: vec![0; n_slots] }
    }

    /// A request begins that will have this completion. To be told before [`Drafter::begin`].
    pub(super) fn begin_trace(slot: usize, trace: &Trace) {
        TRACES.with_borrow_mut(|traces| {
            traces.resize(traces.len().max(slot + 1), (Vec::new(), Vec::new(), Vec::new()));
            traces[slot] = (trace.output.clone(), trace.draft(Kind::Near).to_vec(), trace.draft(Kind::Far).to_vec());
        });
    }

    /// The next token of a draft that has come so far, and its probability; `None`: the recording ends.
    fn next(&self, ask: &DraftRequest<'_>) -> Option<(Token, f32)> {
        TRACES.with_borrow(|traces| {
            let (output, near, far) = &traces[ask.slot];
            let (choices, is_useless) = (if self.kind == Kind::Near { near } else { far }, self.kind == Kind::Useless);
            let wrong = ask.draft.tokens.iter().position(|token| *token == WRONG);
            match wrong {
                Some(at) => {
                    let behind = ask.draft.tokens.len() - at - 1;
                    let p = match is_useless {
                        true => choices.get(ask.generated + behind)?.p,
                        false => *choices[ask.generated + at].tail.get(behind)?,
                    };
                    Some((WRONG, p))
                }
                None => {
                    let at = ask.generated + ask.draft.tokens.len();
                    let choice = choices.get(at)?;
                    Some((if choice.is_right && !is_useless { output[at] } else { WRONG }, choice.p))
                }
            }
        })
    }
}

impl Drafter for ReplayedDraft {
    fn source(&self) -> DrafterKind {
        DrafterKind::Draft
    }

    fn begin(&mut self, slot: usize, _: &Sampler, _: &Settings) {
        // It has kept up with the prompt.
        self.known[slot] = usize::MAX;
    }

    /// As `DraftModel` does: all slots go on together.
    fn draft(&mut self, asks: &mut [DraftRequest<'_>]) {
        for ask in asks.iter() {
            let known = std::mem::replace(&mut self.known[ask.slot], ask.tokens.len());
            let unread = if known == usize::MAX { 0 } else { ask.tokens.len().saturating_sub(known + 1 + 16) };
            pass(self.machine.draft_prompt(unread));
        }
        let mut active: Vec<bool> = asks.iter().map(|ask| ask.n_max > 0).collect();
        while active.iter().any(|active| *active) {
            pass(self.machine.draft(active.iter().filter(|active| **active).count()));
            for (ask, active) in asks.iter_mut().zip(&mut active).filter(|(_, active)| **active) {
                let next = self.next(ask);
                if let Some((token, p)) = next {
                    ask.draft.push(token, p);
                }
                let full = ask.draft.tokens.len() >= ask.n_max;
                *active = next.is_some() && !full && ask.pace.wants_more(&ask.draft.confidence, ask.n_max);
            }
            if !another_round_pays(asks.iter().map(DraftRequest::growing)) {
                break;
            }
        }
    }

    fn checked(&mut self, _: usize, _: usize, _: usize) {}

    fn shift(&mut self, _: usize, _: usize, _: usize) {}

    fn end(&mut self, _: usize, _: &[Token], _: usize) {}

    fn disabled(&self, _: usize) -> Option<&str> {
        None
    }
}
