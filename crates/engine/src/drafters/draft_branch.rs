//! The end of a branch of a draft, to which a model adds tokens, and the choice of these tokens.

use foredraft_base::prompt_fit::common_prefix;
use foredraft_llama::{Context, SeqId, Token};
use foredraft_sampling as sampling;
use foredraft_sampling::Sampler;
use foredraft_speculation::MAX_BRANCHES;
use foredraft_speculation::verify::TokenDistribution;
use foredraft_speculation::{DraftRequest, Drawing};

/// A token and its alternatives, with their probabilities.
pub(super) type BranchTokens = [Option<(Token, f32)>; MAX_BRANCHES];

/// The end of a branch. Kept after the draft to reuse its memory.
pub(super) struct DraftBranch {
    pub(super) sequence: SeqId,
    pub(super) sampler: Sampler,
    /// Context and branch, for the sampler's penalties.
    pub(super) history: Vec<Token>,
    /// The last node.
    pub(super) node: usize,
    /// The confidence of each token of the branch.
    path: Vec<f32>,
    /// The position of the next token.
    pub(super) position: usize,
    /// The batch index of the output to sample from. `None`: the branch has ended.
    pub(super) row: Option<usize>,
    /// The branch ends if no token is [twice as probable](is_uncertain) as the next.
    pub(super) ends_if_uncertain: bool,
}

impl DraftBranch {
    pub(super) fn new(sequence: SeqId, sampler: Sampler, ends_if_uncertain: bool) -> DraftBranch {
        DraftBranch {
            sequence,
            sampler,
            history: Vec::new(),
            node: 0,
            path: Vec::new(),
            position: 0,
            row: None,
            ends_if_uncertain,
        }
    }

    /// Starts at the end of `context`.
    pub(super) fn begin(&mut self, context: &[Token], sampler: &Sampler) {
        self.sampler.sync_from(sampler);
        follow(&mut self.history, context);
        self.node = 0;
        self.path.clear();
    }

    /// Copies the state of `other`.
    pub(super) fn branch_from(&mut self, other: &DraftBranch) {
        self.begin(&other.history, &other.sampler);
        self.node = other.node;
        self.path.extend_from_slice(&other.path);
        // It can still have an output that an interrupted decode did not compute.
        (self.position, self.row) = (other.position, None);
    }

    pub(super) fn take(&mut self, node: usize, token: Token, confidence: f32) {
        self.node = node;
        self.history.push(token);
        self.path.push(confidence);
        self.position += 1;
    }

    /// Whether the branch continues after its last token `token`.
    pub(super) fn goes_on(&mut self, request: &DraftRequest<'_>, context: &Context, token: Token) -> bool {
        request.draft.tokens.len() < request.n_max
            && request.stop_policy.wants_more(&self.path, request.n_max)
            && !context.model().vocab().is_eog(token)
            && self.history.len() < context.n_ctx()
            && self.sampler.accept(token).is_ok()
    }

    /// The next token, and up to `free` alternatives that are worth a branch, each with its probability. No next token: the branch ends.
    pub(super) fn choose(&mut self, request: &mut DraftRequest<'_>, logits: &mut [f32], free: usize) -> BranchTokens {
        let free = free.min(MAX_BRANCHES - 1).min(request.n_max.saturating_sub(request.draft.tokens.len() + 1));
        let depth = self.path.len();
        let mut choice = [None; MAX_BRANCHES];
        // Decided before drawing, as below.
        if self.ends_if_uncertain && is_uncertain(logits) {
            return choice;
        }
        if let Some(Drawing { drawn, random }) = &mut request.drawing {
            let Ok(items) = self.sampler.constrained_distribution(logits, &self.history, request.position + depth)
            else {
                return choice;
            };
            let Some(q) = TokenDistribution::new(items) else { return choice };
            // Decided before drawing, because a drawn token must not be dropped for its small probability.
            let (likeliest, best) = q.best();
            if best < f64::from(request.p_min) {
                return choice;
            }
            let least = f64::from(request.branches.1.max(request.p_min));
            let others = q.iter().filter(|(token, q)| *token != likeliest && *q >= least && *q > 0.0);
            let worth = |q: f64| request.stop_policy.wants_branch(&self.path, q as f32, request.draft.tokens.len() + 1);
            let n = 1 + others.filter(|(_, q)| worth(*q)).take(free).count();
            let tokens = drawn.draw(self.node, q, n, random);
            for (place, token) in choice.iter_mut().zip(tokens) {
                *place = Some((token, sampling::probability(logits, token)));
            }
            return choice;
        }
        let Some(first) = choose(request, &mut self.sampler, logits, &self.history, depth) else { return choice };
        let [place, others @ ..] = &mut choice;
        *place = Some(first);
        self.siblings(request, logits, first, others.iter_mut().take(free));
        choice
    }

    /// Alternatives to `first` that are worth a branch, as many as there are `places`: what would be chosen without the tokens before them
    /// (`speculative.cpp` takes the most probable ones).
    fn siblings<'a>(
        &mut self,
        request: &DraftRequest<'_>,
        logits: &mut [f32],
        first: (Token, f32),
        places: impl Iterator<Item = &'a mut Option<(Token, f32)>>,
    ) {
        let mut hidden = [None; MAX_BRANCHES];
        let (mut left, mut last) = (1.0 - first.1, first.0);
        let (least, position) = (request.branches.1.max(request.p_min), request.position + self.path.len());
        for (place, hidden) in places.zip(&mut hidden) {
            // The remaining probability usually shows early that there are none.
            if left < least {
                break;
            }
            let Some(logit) = usize::try_from(last).ok().and_then(|index| logits.get_mut(index)) else { break };
            *hidden = Some((last, std::mem::replace(logit, f32::NEG_INFINITY)));
            let Ok(token) = self.sampler.sample(logits, &self.history, position) else { break };
            let confidence = left * sampling::probability(logits, token);
            if confidence < least
                || !request.stop_policy.wants_branch(&self.path, confidence, request.draft.tokens.len() + 1)
            {
                break;
            }
            *place = Some((token, confidence));
            (left, last) = (left - confidence, token);
        }
        for (token, logit) in hidden.into_iter().flatten() {
            if let Some(place) = usize::try_from(token).ok().and_then(|index| logits.get_mut(index)) {
                *place = logit;
            }
        }
    }
}

/// `speculative.cpp`'s rule for the end of a draft: the most probable token is less than twice as probable as the second one.
fn is_uncertain(logits: &[f32]) -> bool {
    let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for logit in logits {
        if *logit > first {
            (first, second) = (*logit, first);
        } else if *logit > second {
            second = *logit;
        }
    }
    first - second < std::f32::consts::LN_2
}

/// Makes `history` equal to `tokens`. Copies only the end that differs.
pub(super) fn follow(history: &mut Vec<Token>, tokens: &[Token]) {
    let kept = common_prefix(history, tokens);
    history.truncate(kept);
    history.extend_from_slice(tokens.get(kept..).unwrap_or(&[]));
}

/// The token after `depth` others of a draft, and its probability. `None`: the draft ends.
pub(super) fn choose(
    request: &mut DraftRequest<'_>,
    sampler: &mut Sampler,
    logits: &mut [f32],
    history: &[Token],
    depth: usize,
) -> Option<(Token, f32)> {
    let position = request.position + depth;
    if let Some(Drawing { drawn, random }) = &mut request.drawing {
        let q = TokenDistribution::new(sampler.constrained_distribution(logits, history, position).ok()?)?;
        // Decided before drawing, because a drawn token must not be dropped for its small probability.
        let (_, best) = q.best();
        let token = if best < f64::from(request.p_min) { None } else { drawn.draw(depth, q, 1, random).next() }?;
        return Some((token, sampling::probability(logits, token)));
    }
    let token = sampler.sample(logits, history, position).ok()?;
    let confidence = sampling::probability(logits, token);
    (confidence >= request.p_min).then_some((token, confidence))
}

#[cfg(test)]
mod tests {
    use super::is_uncertain;

    #[test]
    fn a_draft_ends_where_no_token_is_twice_as_probable_as_the_next() {
        let logits = |probabilities: &[f32]| probabilities.iter().map(|p| p.ln() + 3.0).collect::<Vec<_>>();
        for (probabilities, uncertain) in [
            (&[0.6, 0.31, 0.09][..], true),
            (&[0.09, 0.29, 0.62], false),
            (&[0.5, 0.5], true),
            (&[0.3, 0.1, 0.14, 0.1, 0.16, 0.2], true),
            (&[0.34, 0.16, 0.17, 0.1, 0.13, 0.1], false),
        ] {
            assert_eq!(is_uncertain(&logits(probabilities)), uncertain, "{probabilities:?}");
        }
        // A grammar's only possible token is certain.
        assert!(!is_uncertain(&[f32::NEG_INFINITY, -5.0, f32::NEG_INFINITY]));
    }
}
