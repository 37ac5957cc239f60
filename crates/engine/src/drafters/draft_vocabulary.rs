//! The tokens that a draft model scores: those that are frequent, those of the context, and those of earlier completions (FR-Spec,
//! arXiv 2502.14856).
//!
//! A large vocabulary's output weights are up to a third of the bytes that a small model reads for each token. The target verifies every
//! draft, so a draft model can do without tokens that hardly occur: a missing token costs the rest of a draft, and changes no completion.
//! The draft's distribution is the softmax of the tokens that are scored.
//!
//! Which tokens a draft can have does not depend on other slots at that time: each slot's logits are masked by its own tokens.

use std::cmp::Reverse;
use std::collections::HashMap;

use foredraft_llama::{Context, Token, TokenSubset};
use foredraft_speculation::Caches;

/// The tokens with the lowest ids that are scored. Tokenizers number their tokens by frequency, as byte pairs are merged.
const FREQUENT: usize = 16 << 10;
/// Tokens that were counted are added up to this part of those, and learned ones up to their double.
const MOST_COUNTED: usize = 4;
/// The output weights' part of the model from which on fewer tokens pay.
const LEAST_PART: u64 = 8;
/// One in so many tokens of a completion may be one that was not scored before, and a few more at its beginning. If more are missing, all
/// are scored.
const RARELY: usize = 4;
const AT_FIRST: usize = 4;

/// The tokens that a request begins with.
#[derive(Debug)]
pub(super) struct CommonTokens {
    frequent: TokenSubset,
    /// The frequent ones, and those of earlier completions.
    learned: TokenSubset,
    /// How often earlier completions had each of the others.
    counts: HashMap<Token, u32>,
}

impl CommonTokens {
    pub(super) fn new(frequent: TokenSubset) -> CommonTokens {
        CommonTokens { learned: frequent.clone(), frequent, counts: HashMap::new() }
    }

    /// Learns the tokens of a completion. Once the learned tokens are twice as many as the frequent ones, it forgets those that were rare.
    pub(super) fn learn(&mut self, completion: &[Token]) {
        if self.learned.len() > 2 * self.frequent.len() {
            self.learned.clone_from(&self.frequent);
            self.counts.retain(|token, count| {
                *count /= 2;
                if *count > 0 {
                    self.learned.insert(*token);
                }
                *count > 0
            });
        }
        for token in completion.iter().filter(|token| !self.frequent.contains(**token)) {
            *self.counts.entry(*token).or_default() += 1;
            self.learned.insert(*token);
        }
    }

    /// Forgets the completions.
    pub(super) fn forget(&mut self) {
        self.learned.clone_from(&self.frequent);
        self.counts.clear();
    }
}

/// The tokens that the drafts of a slot's request can have.
#[derive(Debug, Default)]
pub(super) struct DraftVocabulary {
    /// `None`: all.
    tokens: Option<TokenSubset>,
    /// The tokens of the context that were added.
    n_read: usize,
    /// The tokens of the completion that were not scored before.
    n_missed: usize,
}

impl DraftVocabulary {
    /// A request starts.
    pub(super) fn begin(&mut self, common: Option<&CommonTokens>) {
        match (&mut self.tokens, common) {
            (Some(tokens), Some(common)) => tokens.clone_from(&common.learned),
            (tokens, common) => *tokens = common.map(|common| common.learned.clone()),
        }
        (self.n_read, self.n_missed) = (0, 0);
    }

    /// Adds the new tokens of a context, of which the last `generated` are the completion.
    pub(super) fn follow(&mut self, context: &[Token], generated: usize) {
        let Some(tokens) = &mut self.tokens else { return };
        let completion = context.len().saturating_sub(generated);
        for (index, token) in context.iter().enumerate().skip(self.n_read) {
            self.n_missed += usize::from(index >= completion && !tokens.contains(*token));
            tokens.insert(*token);
        }
        self.n_read = context.len();
        if self.n_missed > AT_FIRST + generated / RARELY {
            self.tokens = None;
        }
    }

    /// Tokens were removed from the context.
    pub(super) fn shift(&mut self, dropped: usize) {
        self.n_read = self.n_read.saturating_sub(dropped);
    }

    /// The tokens. `None`: all.
    pub(super) fn tokens(&self) -> Option<&TokenSubset> {
        self.tokens.as_ref()
    }
}

/// The tokens that every draft of the model can have: `n`, those that end a completion, and some of the most frequent ones of the n-gram caches; the
/// context can score them alone. 0: all. `n` `None`: as many as pay. Returns `None` for all tokens.
pub(crate) fn frequent_tokens(context: &mut Context, n: Option<usize>, caches: &Caches) -> Option<TokenSubset> {
    let model = context.model();
    let (n_vocab, pays) = (model.vocab().n_tokens(), model.output_size() >= model.size() / LEAST_PART);
    let n = n.or_else(|| (pays && n_vocab >= 2 * FREQUENT).then_some(FREQUENT)).filter(|n| (1..n_vocab).contains(n))?;
    let mut tokens = TokenSubset::first(n, n_vocab);
    let vocab = model.vocab();
    (0..Token::try_from(n_vocab).unwrap_or(0))
        .filter(|token| vocab.is_eog(*token))
        .for_each(|token| tokens.insert(token));
    let mut counted = counted_tokens(caches, n_vocab).into_iter();
    while tokens.len() < n + n / MOST_COUNTED
        && let Some(token) = counted.next()
    {
        tokens.insert(token);
    }
    context.can_score(&tokens).then_some(tokens)
}

/// The tokens of the n-gram caches, the most frequent first, of equals the lowest.
fn counted_tokens(caches: &Caches, n_vocab: usize) -> Vec<Token> {
    let counts = caches.static_cache().token_counts(n_vocab);
    let of_dynamic = caches.dynamic().map(|cache| cache.token_counts(n_vocab));
    let of_dynamic = of_dynamic.into_iter().flatten().chain(std::iter::repeat(0));
    let all = (0..).zip(counts).zip(of_dynamic).map(|((token, count), more)| (Reverse(count + more), token));
    let mut counted: Vec<(Reverse<u64>, Token)> = all.filter(|(Reverse(count), _)| *count > 0).collect();
    counted.sort_unstable();
    counted.into_iter().map(|(_, token)| token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common() -> CommonTokens {
        CommonTokens::new(TokenSubset::first(16, 1600))
    }

    fn vocabulary() -> DraftVocabulary {
        let mut vocabulary = DraftVocabulary::default();
        vocabulary.begin(Some(&common()));
        vocabulary
    }

    fn has(vocabulary: &DraftVocabulary, token: Token) -> bool {
        vocabulary.tokens().is_none_or(|tokens| tokens.contains(token))
    }

    #[test]
    fn tokens_of_the_context_are_scored_until_the_request_ends() {
        let mut vocabulary = vocabulary();
        vocabulary.follow(&[3, 800, 5], 0);
        assert!(has(&vocabulary, 15) && has(&vocabulary, 801) && !has(&vocabulary, 900));
        vocabulary.shift(2);
        vocabulary.follow(&[5, 900], 1);
        assert!(has(&vocabulary, 900) && has(&vocabulary, 800));
        vocabulary.begin(Some(&common()));
        assert!(!has(&vocabulary, 800) && !has(&vocabulary, 900), "another request begins anew");
        vocabulary.begin(None);
        assert!(has(&vocabulary, 800));
    }

    #[test]
    fn tokens_of_some_earlier_completions_are_scored() {
        let (mut common, mut vocabulary) = (common(), DraftVocabulary::default());
        common.learn(&[800]);
        vocabulary.begin(Some(&common));
        assert!(has(&vocabulary, 801) && !has(&vocabulary, 900));
        // 32 tokens are the most that are kept, and those that were frequent stay.
        common.learn(&[900, 1000, 1000]);
        common.learn(&[1100]);
        vocabulary.begin(Some(&common));
        assert!(has(&vocabulary, 1000) && has(&vocabulary, 1100) && !has(&vocabulary, 800) && !has(&vocabulary, 900));
        common.forget();
        vocabulary.begin(Some(&common));
        assert!(!has(&vocabulary, 1000) && has(&vocabulary, 3));
    }

    #[test]
    fn tokens_of_the_caches_are_ordered_by_their_counts() {
        let caches = Caches::default();
        // The tokens after the first one of a text, and those of n-grams of several sizes count more than once.
        caches.learn(&[1, 700, 2, 900, 2, 900, 5000], 0);
        assert_eq!(counted_tokens(&caches, 1600), [900, 2, 700]);
        assert_eq!(counted_tokens(&caches, 100), [2]);
        assert!(counted_tokens(&Caches::default(), 1600).is_empty());
    }

    #[test]
    fn all_tokens_are_scored_once_many_were_missing() {
        // A prompt may have any tokens.
        let mut context: Vec<Token> = (0..50).map(|index| index * 20).collect();
        let (mut rare, mut usual) = (vocabulary(), vocabulary());
        let mut usual_context = context.clone();
        for generated in 1..=40 {
            context.push(1000 + Token::try_from(generated).unwrap() * 10);
            usual_context.push(Token::try_from(generated).unwrap() % 16);
            rare.follow(&context, generated);
            usual.follow(&usual_context, generated);
        }
        assert!(rare.tokens().is_none() && usual.tokens().is_some());
    }
}
