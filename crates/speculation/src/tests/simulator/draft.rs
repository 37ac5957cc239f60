//! A draft model that replays recorded choices.

use std::cell::RefCell;

use super::machine::Machine;
use super::trace::{Choice, Trace};
use super::{Kind, pass};
use crate::controller::{DraftPasses, another_round_pays};
use crate::{DraftRequest, Drafter, DrafterKind, Settings, SoFar};
use foredraft_base::Token;
use foredraft_sampling::Sampler;

/// Replaces rejected tokens: it does not occur in any output.
const WRONG: Token = 1;

/// An output, and the choices of the near and the far draft model at each of its positions.
type Replayed = (Vec<Token>, Vec<Choice>, Vec<Choice>);

thread_local! {
    /// The traces of the requests in the slots.
    static TRACES: RefCell<Vec<Replayed>> = const { RefCell::new(Vec::new()) };
}

/// The draft model; or a history drafter that drafts the same, at no cost.
pub(super) struct ReplayedDraft {
    source: DrafterKind,
    kind: Kind,
    machine: Machine,
    /// The number of tokens of each slot's context that are in its cache.
    known: Vec<usize>,
}

impl ReplayedDraft {
    pub(super) fn new(n_slots: usize, kind: Kind, machine: &Machine) -> ReplayedDraft {
        ReplayedDraft::from_history(DrafterKind::Draft, n_slots, kind, machine)
    }

    /// A drafter of another kind than a draft model.
    pub(super) fn from_history(source: DrafterKind, n_slots: usize, kind: Kind, machine: &Machine) -> ReplayedDraft {
        ReplayedDraft { source, kind, machine: machine.clone(), known: vec![0; n_slots] }
    }

    fn is_model(&self) -> bool {
        self.source == DrafterKind::Draft
    }

    fn draft_from_history(&self, request: &mut DraftRequest<'_>) {
        let (mut so_far, mut sure) = (SoFar::default(), 1.0);
        while request.draft.tokens.len() < request.n_max {
            let Some((token, p)) = self.next(request) else { break };
            sure *= request.stop_policy.acceptance(p);
            if !request.stop_policy.may_gain(&mut so_far, sure) {
                break;
            }
            request.draft.push(token, p);
        }
    }

    /// Sets the completion of the next request. Must be called before [`Drafter::begin`].
    pub(super) fn begin_trace(slot: usize, trace: &Trace) {
        TRACES.with_borrow_mut(|traces| {
            traces.resize(traces.len().max(slot + 1), (Vec::new(), Vec::new(), Vec::new()));
            traces[slot] = (trace.output.clone(), trace.draft(Kind::Near).to_vec(), trace.draft(Kind::Far).to_vec());
        });
    }

    /// The next token of a draft so far, and its probability. `None`: the recording ends.
    fn next(&self, request: &DraftRequest<'_>) -> Option<(Token, f32)> {
        TRACES.with_borrow(|traces| {
            let (output, near, far) = &traces[request.slot];
            let (choices, is_useless) = (if self.kind == Kind::Near { near } else { far }, self.kind == Kind::Useless);
            let wrong = request.draft.tokens.iter().position(|token| *token == WRONG);
            match wrong {
                Some(at) => {
                    let behind = request.draft.tokens.len() - at - 1;
                    let p = match is_useless {
                        true => choices.get(request.generated + behind)?.p,
                        false => *choices[request.generated + at].tail.get(behind)?,
                    };
                    Some((WRONG, p))
                }
                None => {
                    let at = request.generated + request.draft.tokens.len();
                    let choice = choices.get(at)?;
                    Some((if choice.is_right && !is_useless { output[at] } else { WRONG }, choice.p))
                }
            }
        })
    }
}

impl Drafter for ReplayedDraft {
    fn source(&self) -> DrafterKind {
        self.source
    }

    fn begin(&mut self, slot: usize, _: &Sampler, _: &Settings) {
        // It has caught up with the prompt.
        self.known[slot] = usize::MAX;
    }

    /// As `DraftModel` and `BlockHead` do: all slots draft in the same passes.
    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) {
        if !self.is_model() {
            requests.iter_mut().for_each(|request| self.draft_from_history(request));
            return;
        }
        for request in requests.iter() {
            let known = std::mem::replace(&mut self.known[request.slot], request.tokens.len());
            let unread = if known == usize::MAX { 0 } else { request.tokens.len().saturating_sub(known + 1) };
            pass(self.machine.draft_prompt(unread));
        }
        let mut active: Vec<bool> = requests.iter().map(|request| request.n_max > 0).collect();
        let passes = self.machine.passes;
        for drafted in 0.. {
            let n_active = active.iter().filter(|active| **active).count();
            if n_active == 0 {
                break;
            }
            pass(passes.between(drafted, drafted + 1) as f64 * self.machine.draft(n_active));
            for (request, active) in requests.iter_mut().zip(&mut active).filter(|(_, active)| **active) {
                let next = self.next(request);
                if let Some((token, p)) = next {
                    request.draft.push(token, p);
                }
                let full = request.draft.tokens.len() >= request.n_max;
                *active =
                    next.is_some() && !full && request.stop_policy.wants_more(&request.draft.confidence, request.n_max);
            }
            if passes == DraftPasses::PerToken && !another_round_pays(requests.iter().map(DraftRequest::growing)) {
                break;
            }
        }
    }

    /// The accepted tokens of its draft are in its cache.
    fn verified(&mut self, slot: usize, _: usize, n_accepted: usize) {
        self.known[slot] = self.known[slot].saturating_add(n_accepted);
    }

    fn shift(&mut self, _: usize, _: usize, _: usize) {}

    fn end(&mut self, _: usize, _: &[Token], _: usize) {}

    fn disabled(&self, _: usize) -> Option<&str> {
        None
    }
}
