//! The rows of pictures and sounds in a prompt, where they are negative numbers among the tokens.

use std::sync::Arc;

use foredraft_llama::{BatchInput, EncodedMedia, Token};

/// The picture or sound that has the row with this number.
pub(super) fn media_of(media: &[Arc<EncodedMedia>], token: Token) -> Option<&EncodedMedia> {
    media.iter().find(|medium| medium.rows_from(token).is_some()).map(Arc::as_ref)
}

/// The rows that `tokens` begin with, and whether they are decoded together; and the tokens, or rows, before another kind of them.
pub(super) fn next_medium(media: &[Arc<EncodedMedia>], tokens: &[Token]) -> (Option<(usize, bool)>, usize) {
    let of = |token: &Token| {
        let medium = media_of(media, *token)?;
        Some((medium.rows_from(*token)?, medium.input_from(*token) == BatchInput::NonCausalRows))
    };
    match tokens.first().and_then(of) {
        Some((n, is_whole)) => (Some((n, is_whole)), n),
        // Other negative numbers are tokens that a damaged vocabulary names: decoding them is an error.
        None => (None, tokens.iter().position(|token| *token < 0 && of(token).is_some()).unwrap_or(usize::MAX)),
    }
}

/// The position of each token, and of what follows them.
pub(super) fn positions(media: &[Arc<EncodedMedia>], tokens: &[Token]) -> Vec<usize> {
    let (mut all, mut next) = (Vec::with_capacity(tokens.len() + 1), 0);
    while let Some(token) = tokens.get(all.len()) {
        let span = media_of(media, *token).and_then(|medium| medium.span_from(*token, all.len()));
        let (n, advance) = span.map_or((1, 1), |span| (span.rows, span.positions));
        all.extend(std::iter::repeat_n(next, n));
        next += advance;
    }
    all.truncate(tokens.len());
    all.push(next);
    all
}
