//! The repeat, presence and frequency penalties, as llama.cpp's `penalties` sampler has them.

use super::candidates::Candidates;
use super::row::Row;
use super::settings::Settings;
use super::tally::Tally;
use crate::llama::Token;

/// How much of the history a penalty looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window(Option<usize>);

impl Window {
    /// From a setting: negative means everything.
    pub(super) fn new(last_n: i32) -> Self {
        Window(usize::try_from(last_n).ok())
    }

    /// The most tokens it can show.
    pub(super) fn limit(self) -> Option<usize> {
        self.0
    }

    /// The end of `history` that it shows.
    pub(super) fn of(self, history: &[Token]) -> &[Token] {
        let start = self.0.map_or(0, |last_n| history.len().saturating_sub(last_n));
        history.get(start..).unwrap_or(&[])
    }
}

/// A penalty makes a token unlikely but never bans it: an overflow ends at the lowest finite logit. What was banned
/// stays so.
pub(super) fn at_least_finite(logit: f32, penalised: f32) -> f32 {
    if logit > f32::NEG_INFINITY { penalised.max(f32::MIN) } else { logit }
}

/// The three penalties that depend on how often a token occurs in the window.
///
/// A pure function of the history: speculation rolls back nothing.
#[derive(Debug, Clone)]
pub(super) struct Penalties {
    window: Window,
    repeat: f32,
    presence: f32,
    frequency: f32,
    /// A token that is never penalised: the newline, with `penalize_nl` false.
    exempt: Option<Token>,
}

impl Penalties {
    /// `None` when the settings turn all three off.
    pub(super) fn new(settings: &Settings, newline: Option<Token>) -> Option<Self> {
        let neutral =
            settings.repeat_penalty == 1.0 && settings.presence_penalty == 0.0 && settings.frequency_penalty == 0.0;
        if neutral || settings.repeat_last_n == 0 {
            return None;
        }
        Some(Penalties {
            window: Window::new(settings.repeat_last_n),
            repeat: settings.repeat_penalty,
            presence: settings.presence_penalty,
            frequency: settings.frequency_penalty,
            exempt: newline.filter(|_| !settings.penalize_nl),
        })
    }

    /// How many different tokens it can change.
    pub(super) fn reach(&self) -> Option<usize> {
        self.window.limit()
    }

    fn penalised(&self, logit: f32, count: u32) -> f32 {
        // Dividing a negative logit would make the token more likely.
        let scaled = if logit <= 0.0 { logit * self.repeat } else { logit / self.repeat };
        at_least_finite(logit, scaled - (count as f32 * self.frequency + self.presence))
    }

    fn count(&self, history: &[Token], counts: &mut Tally) {
        for token in self.window.of(history).iter().filter(|token| self.exempt != Some(**token)) {
            counts.update(*token, |count| count.saturating_add(1));
        }
    }

    /// Penalises in the row. `counts` is empty before and after.
    pub(super) fn edit(&self, row: &mut Row<'_>, history: &[Token], counts: &mut Tally) {
        self.count(history, counts);
        for &token in counts.tokens() {
            row.edit(token, |logit| self.penalised(logit, counts.get(token)));
        }
        counts.clear();
    }

    /// Penalises in a list.
    pub(super) fn apply(&self, list: &mut Candidates, history: &[Token], counts: &mut Tally) {
        self.count(history, counts);
        list.change(false, |items| {
            for item in items {
                match counts.get(item.id) {
                    0 => {}
                    count => item.logit = self.penalised(item.logit, count),
                }
            }
        });
        counts.clear();
    }
}

#[cfg(test)]
#[path = "penalties_tests.rs"]
mod tests;
