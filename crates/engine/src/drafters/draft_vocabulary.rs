//! The tokens that a draft model scores: those that are frequent, those of the context, and those of earlier completions (FR-Spec,
//! arXiv 2502.14856).
//!
//! A large vocabulary's output weights are up to a third of the bytes that a small model reads for each token. The target verifies every
//! draft, so a draft model can do without tokens that hardly occur: a missing token costs the rest of a draft, and changes no completion.
//! The draft's distribution is the softmax of the tokens that are scored.
//!
//! Which tokens a draft can have does not depend on other slots at that time: each slot's logits are masked by its own tokens.

use foredraft_llama::{Context, Token, TokenSubset};

/// The tokens with the lowest ids that are scored. Tokenizers number their tokens by frequency, as byte pairs are merged.
const FREQUENT: usize = 16 << 10;
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
}

impl CommonTokens {
    pub(super) fn new(frequent: TokenSubset) -> CommonTokens {
        CommonTokens { learned: frequent.clone(), frequent }
    }

    /// Learns the tokens of a completion. Begins anew once the learned tokens are twice as many as the frequent ones.
    pub(super) fn learn(&mut self, completion: &[Token]) {
        if self.learned.len() > 2 * self.frequent.len() {
            self.forget();
        }
        completion.iter().for_each(|token| self.learned.insert(*token));
    }

    /// Forgets the completions.
    pub(super) fn forget(&mut self) {
        self.learned.clone_from(&self.frequent);
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

/// The tokens that every draft of the model can have, `n` and those that end a completion; the context can score them alone. 0: all.
/// `n` `None`: as many as pay. Returns `None` for all tokens.
pub(crate) fn frequent_tokens(context: &mut Context, n: Option<usize>) -> Option<TokenSubset> {
    let model = context.model();
    let (n_vocab, pays) = (model.vocab().n_tokens(), model.output_size() >= model.size() / LEAST_PART);
    let n = n.or_else(|| (pays && n_vocab >= 2 * FREQUENT).then_some(FREQUENT)).filter(|n| (1..n_vocab).contains(n))?;
    let mut tokens = TokenSubset::first(n, n_vocab);
    let vocab = model.vocab();
    (0..Token::try_from(n_vocab).unwrap_or(0))
        .filter(|token| vocab.is_eog(*token))
        .for_each(|token| tokens.insert(token));
    context.can_score(&tokens).then_some(tokens)
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
        // 32 tokens are the most that are kept.
        common.learn(&[900]);
        common.learn(&[1000]);
        vocabulary.begin(Some(&common));
        assert!(has(&vocabulary, 1000) && !has(&vocabulary, 800) && !has(&vocabulary, 900));
        common.forget();
        vocabulary.begin(Some(&common));
        assert!(!has(&vocabulary, 1000) && has(&vocabulary, 3));
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
