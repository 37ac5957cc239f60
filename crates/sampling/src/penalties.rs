//! The repeat, presence and frequency penalties of llama.cpp's `penalties` sampler, and the buffers that penalties use.

use super::candidates::Candidates;
use super::settings::SamplingSettings;
use foredraft_base::Token;

/// A row of the model's logits that is edited in a few places and restored afterwards.
#[derive(Debug)]
pub(super) struct EditedLogits<'a> {
    logits: &'a mut [f32],
    /// Index and previous value of each edit, oldest first.
    undo: Vec<(usize, f32)>,
}

impl<'a> EditedLogits<'a> {
    /// `undo` is an empty list whose allocation is reused; [`EditedLogits::restore`] returns it.
    pub(super) fn new(logits: &'a mut [f32], undo: Vec<(usize, f32)>) -> Self {
        EditedLogits { logits, undo }
    }

    /// The edited logits.
    pub(super) fn logits(&self) -> &[f32] {
        self.logits
    }

    /// Replaces the logit of `token`. Ignores ids outside the row.
    pub(super) fn edit(&mut self, token: Token, change: impl FnOnce(f32) -> f32) {
        let Ok(index) = usize::try_from(token) else { return };
        if let Some(logit) = self.logits.get_mut(index) {
            self.undo.push((index, *logit));
            *logit = change(*logit);
        }
    }

    /// Restores every edited logit bit for bit, and returns the emptied list.
    pub(super) fn restore(mut self) -> Vec<(usize, f32)> {
        for (index, former) in self.undo.drain(..).rev() {
            if let Some(logit) = self.logits.get_mut(index) {
                *logit = former;
            }
        }
        self.undo
    }
}

/// A small number for each of a few tokens, without a hash map: a dense table over the vocabulary, and a list of its
/// non-zero entries.
///
/// Reading and writing take one access; clearing takes time proportional to the number of entries written.
#[derive(Debug, Default)]
pub(super) struct TokenCounts {
    values: Vec<u32>,
    touched: Vec<Token>,
}

impl TokenCounts {
    /// A table for `n_vocab` tokens.
    pub(super) fn new(n_vocab: usize) -> Self {
        TokenCounts { values: vec![0; n_vocab], touched: Vec::with_capacity(n_vocab) }
    }

    /// Updates the value of `token`, initially 0. Ignores ids outside the vocabulary. `change` must not return 0.
    pub(super) fn update(&mut self, token: Token, change: impl FnOnce(u32) -> u32) {
        let Some(value) = usize::try_from(token).ok().and_then(|index| self.values.get_mut(index)) else { return };
        if *value == 0 {
            self.touched.push(token);
        }
        *value = change(*value);
    }

    /// The value of `token`; 0 if it has none.
    pub(super) fn get(&self, token: Token) -> u32 {
        usize::try_from(token).ok().and_then(|index| self.values.get(index)).copied().unwrap_or(0)
    }

    /// The tokens with a value, in the order of their first update.
    pub(super) fn tokens(&self) -> &[Token] {
        &self.touched
    }

    /// Resets all values to 0.
    pub(super) fn clear(&mut self) {
        for token in self.touched.drain(..) {
            if let Some(value) = usize::try_from(token).ok().and_then(|index| self.values.get_mut(index)) {
                *value = 0;
            }
        }
    }
}

/// The part of the history that a penalty looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PenaltyWindow(Option<usize>);

impl PenaltyWindow {
    /// From a `last_n` setting: negative means the whole history.
    pub(super) fn new(last_n: i32) -> Self {
        PenaltyWindow(usize::try_from(last_n).ok())
    }

    /// The largest number of tokens in the window; `None`: unlimited.
    pub(super) fn limit(self) -> Option<usize> {
        self.0
    }

    /// The tokens of `history` in the window.
    pub(super) fn of(self, history: &[Token]) -> &[Token] {
        let start = self.0.map_or(0, |last_n| history.len().saturating_sub(last_n));
        history.get(start..).unwrap_or(&[])
    }
}

/// Clamps a penalized logit so that a penalty never bans a token: an overflow gives the lowest finite logit. Banned
/// tokens stay banned.
pub(super) fn clamp_to_finite(logit: f32, penalized: f32) -> f32 {
    if logit > f32::NEG_INFINITY { penalized.max(f32::MIN) } else { logit }
}

/// The three penalties that depend on how often a token occurs in the window.
///
/// A pure function of the history, so speculation needs no rollback.
#[derive(Debug, Clone)]
pub(super) struct Penalties {
    window: PenaltyWindow,
    repeat: f32,
    presence: f32,
    frequency: f32,
    /// A token that is never penalized: the newline, if `penalize_nl` is false.
    exempt: Option<Token>,
}

impl Penalties {
    /// `None` if the settings turn all three off.
    pub(super) fn new(settings: &SamplingSettings, newline: Option<Token>) -> Option<Self> {
        let neutral =
            settings.repeat_penalty == 1.0 && settings.presence_penalty == 0.0 && settings.frequency_penalty == 0.0;
        if neutral || settings.repeat_last_n == 0 {
            return None;
        }
        Some(Penalties {
            window: PenaltyWindow::new(settings.repeat_last_n),
            repeat: settings.repeat_penalty,
            presence: settings.presence_penalty,
            frequency: settings.frequency_penalty,
            exempt: newline.filter(|_| !settings.penalize_nl),
        })
    }

    /// The largest number of different tokens it can change.
    pub(super) fn max_edits(&self) -> Option<usize> {
        self.window.limit()
    }

    fn penalized(&self, logit: f32, count: u32) -> f32 {
        // Dividing a negative logit would make the token more probable.
        let scaled = if logit <= 0.0 { logit * self.repeat } else { logit / self.repeat };
        clamp_to_finite(logit, scaled - (count as f32 * self.frequency + self.presence))
    }

    fn count(&self, history: &[Token], counts: &mut TokenCounts) {
        for token in self.window.of(history).iter().filter(|token| self.exempt != Some(**token)) {
            counts.update(*token, |count| count.saturating_add(1));
        }
    }

    /// Penalizes tokens in the row. `counts` is empty before and after.
    pub(super) fn edit(&self, row: &mut EditedLogits<'_>, history: &[Token], counts: &mut TokenCounts) {
        self.count(history, counts);
        for &token in counts.tokens() {
            row.edit(token, |logit| self.penalized(logit, counts.get(token)));
        }
        counts.clear();
    }

    /// Penalizes tokens in a list. `counts` is empty before and after.
    pub(super) fn apply(&self, list: &mut Candidates, history: &[Token], counts: &mut TokenCounts) {
        self.count(history, counts);
        list.edit_logits(false, |items| {
            for item in items {
                match counts.get(item.id) {
                    0 => {}
                    count => item.logit = self.penalized(item.logit, count),
                }
            }
        });
        counts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::candidates::Candidates;
    use super::super::penalties::EditedLogits;
    use super::super::penalties::TokenCounts;
    use super::super::settings::SamplingSettings;
    use super::Penalties;
    use foredraft_base::{Token, TokenData};

    fn settings(repeat: f32, presence: f32, frequency: f32, last_n: i32) -> SamplingSettings {
        SamplingSettings {
            repeat_penalty: repeat,
            presence_penalty: presence,
            frequency_penalty: frequency,
            repeat_last_n: last_n,
            ..SamplingSettings::default()
        }
    }

    /// The logits after the penalties. Asserts that row and list give the same ones and that the row is restored.
    fn penalized(settings: &SamplingSettings, newline: Option<Token>, logits: &[f32], history: &[Token]) -> Vec<f32> {
        let penalties = Penalties::new(settings, newline).unwrap();
        let (mut tally, mut raw) = (TokenCounts::new(logits.len()), logits.to_vec());
        let mut row = EditedLogits::new(&mut raw, Vec::new());
        penalties.edit(&mut row, history, &mut tally);
        let edited = row.logits().to_vec();
        row.restore();
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&raw), bits(logits), "restored");

        let mut list = Candidates::default();
        list.refill(false, |items| {
            let alive = (0..).zip(logits).filter(|(_, logit)| **logit > f32::NEG_INFINITY);
            items.extend(alive.map(|(id, logit)| TokenData { id, logit: *logit, p: 0.0 }));
            items.reverse();
        });
        penalties.apply(&mut list, history, &mut tally);
        for item in list.items() {
            assert_eq!(item.logit, edited[item.id as usize], "token {}", item.id);
        }
        assert!(tally.tokens().is_empty() && (0..logits.len()).all(|token| tally.get(token as Token) == 0));
        edited
    }

    fn check(settings: &SamplingSettings, logits: &[f32], history: &[Token], expected: &[f32]) {
        let found = penalized(settings, None, logits, history);
        let close = found.iter().zip(expected).all(|(a, b)| a == b || (a - b).abs() <= 1e-6 * b.abs());
        assert!(close && found.len() == expected.len(), "{found:?}, expected {expected:?}");
    }

    #[test]
    fn each_penalty_changes_logits_by_its_formula() {
        let logits = [4.0, -4.0, 0.0, 1.0];
        check(&settings(2.0, 0.0, 0.0, 64), &logits, &[0, 1, 2, 0, 0], &[2.0, -8.0, 0.0, 1.0]);
        check(&settings(1.0, 0.5, 0.0, 64), &logits, &[0, 1, 2, 0, 0], &[3.5, -4.5, -0.5, 1.0]);
        check(&settings(1.0, 0.0, 0.5, 64), &logits, &[0, 1, 2, 0, 0], &[2.5, -4.5, -0.5, 1.0]);
        check(&settings(2.0, 1.0, 0.5, 64), &logits, &[0, 1, 2, 0, 0], &[2.0 - 2.5, -8.0 - 1.5, -1.5, 1.0]);
        check(&settings(0.5, -1.0, -0.5, 64), &logits, &[3], &[4.0, -4.0, 0.0, 2.0 + 1.5]);
    }

    #[test]
    fn window_is_the_end_of_the_history() {
        let logits = [2.0; 5];
        let history = [0, 1, 2, 3];
        for (last_n, expected) in [
            (1, [2.0, 2.0, 2.0, 1.0, 2.0]),
            (2, [2.0, 2.0, 1.0, 1.0, 2.0]),
            (4, [1.0, 1.0, 1.0, 1.0, 2.0]),
            (64, [1.0, 1.0, 1.0, 1.0, 2.0]),
            (-1, [1.0, 1.0, 1.0, 1.0, 2.0]),
        ] {
            check(&settings(2.0, 0.0, 0.0, last_n), &logits, &history, &expected);
            check(&settings(2.0, 0.0, 0.0, last_n), &logits, &[], &logits);
        }
    }

    #[test]
    fn neutral_settings_make_no_stage() {
        for off in [settings(1.0, 0.0, 0.0, 64), settings(1.5, 0.5, 0.5, 0)] {
            assert!(Penalties::new(&off, None).is_none());
        }
    }

    #[test]
    fn newline_is_exempt_when_penalize_nl_is_false() {
        let mut settings = settings(2.0, 1.0, 1.0, 64);
        let (logits, history) = ([2.0, 2.0], [0, 0, 1]);
        assert_eq!(penalized(&settings, Some(0), &logits, &history), [1.0 - 3.0, 1.0 - 2.0]);
        settings.penalize_nl = false;
        assert_eq!(penalized(&settings, Some(0), &logits, &history), [2.0, 1.0 - 2.0]);
        assert_eq!(penalized(&settings, None, &logits, &history), [1.0 - 3.0, 1.0 - 2.0]);
    }

    #[test]
    fn penalties_do_not_ban_and_do_not_unban() {
        let history = [0, 1, 2];
        let strong = settings(1e30, 1e38, 1e38, 64);
        assert_eq!(
            penalized(&strong, None, &[-1e20, f32::NEG_INFINITY, 1.0], &history)[..2],
            [f32::MIN, f32::NEG_INFINITY]
        );
        let generous = settings(1.0, -1e38, -1e38, 64);
        assert_eq!(penalized(&generous, None, &[0.0, f32::NEG_INFINITY, 1.0], &history)[1], f32::NEG_INFINITY);
    }

    #[test]
    fn ids_outside_the_vocabulary_are_ignored() {
        check(&settings(2.0, 0.0, 0.0, -1), &[2.0, 2.0], &[-1, 2, Token::MAX, Token::MIN, 1], &[2.0, 1.0]);
    }
}
