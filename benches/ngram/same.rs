//! Compares this library's drafts with llama.cpp's.
//!
//! If scores are equal, llama.cpp takes the first token in the order of its hash map, and this library the lowest id. So a difference is a
//! **tie** if llama.cpp's rule, with llama.cpp's caches (`peer_cache_may_draft`), allows both tokens at the first position where the drafts
//! differ. (Ending the draft counts as a token.) Positions where llama.cpp's product of two counts overflows its `int` are ignored.
//! Everything else is a real difference.

use foredraft::ngram::{Cache, CacheLevels, Sizes};

use super::host::Result;
use super::peer::{self, Caches, May};
use super::{N_CTX, N_DRAFT};

/// The number of tokens before a position that both sides get; no n-gram is longer.
const SEEN: usize = 8;

#[derive(Debug, Default)]
struct Counts {
    positions: usize,
    drafted: usize,
    equal: usize,
    ties: usize,
    overflows: usize,
    different: usize,
}

/// Drafts at every position of a text, while both context caches are updated, in windows as during generation.
pub fn compare(theirs: &mut Caches, ours: (&Cache, &Cache), text: &[i32]) -> Result<String> {
    let (dynamic, fixed) = ours;
    let (mut counts, mut draft, mut context) = (Counts::default(), Vec::new(), Cache::new());
    let mut example = None;
    for window in text.chunks(N_CTX) {
        context.clear();
        theirs.context = peer::Cache::new()?;
        for at in SEEN..window.len() {
            let (Some(known), Some(shown)) = (window.get(..at), window.get(at - SEEN..=at)) else { continue };
            let levels = CacheLevels { context: &context, dynamic, static_cache: fixed, sizes: Sizes::ALL };
            levels.draft(known, N_DRAFT, &mut draft);
            let (mut expected, _) = theirs.drafts(shown, SEEN, N_DRAFT, false)?;
            expected.retain(|token| *token >= 0);
            let tokens: Vec<i32> = draft.iter().map(|drafted| drafted.token).collect();
            counts.positions += 1;
            counts.drafted += usize::from(!expected.is_empty());
            if tokens == expected {
                counts.equal += 1;
            } else {
                let before = tokens.iter().zip(&expected).take_while(|(a, b)| a == b).count();
                let prefix = [known, tokens.get(..before).unwrap_or_default()].concat();
                let place = |draft: &[i32]| draft.get(before).copied().unwrap_or(-1);
                match (theirs.may_draft(&prefix, place(&tokens))?, theirs.may_draft(&prefix, place(&expected))?) {
                    (May::Yes, May::Yes) => counts.ties += 1,
                    (May::Overflow, _) | (_, May::Overflow) => counts.overflows += 1,
                    _ => {
                        counts.different += 1;
                        example.get_or_insert_with(|| format!("; for example {tokens:?}, {expected:?}"));
                    }
                }
            }
            // Both caches add the token at this position.
            theirs.drafts(shown, SEEN, 0, true)?;
            context.update(window.get(..=at).unwrap_or_default(), 1, Sizes::ALL);
        }
    }
    Ok(format!(
        "drafts of up to {N_DRAFT} at {} positions, {} of them not empty: {} equal, {} ties, {} where llama.cpp's product \
         overflows, {} different{}",
        counts.positions,
        counts.drafted,
        counts.equal,
        counts.ties,
        counts.overflows,
        counts.different,
        example.unwrap_or_default()
    ))
}
