//! Finds the request or call that ends the engine's process, so that only this one ends with an error.
//!
//! Work that was in two processes in a row, and got no token and no answer in either, is suspect. A process gets its suspects one after
//! another. Nothing else is sent to it before a suspect has got a token or its answer, or has run for a while without a death. Work that
//! was alone when its process died, and has been in [`MAX_DEATHS`] processes that died, is guilty.

use std::time::{Duration, Instant};

/// After this many deaths of the process without a token in between, work that was alone is guilty.
pub(super) const MAX_DEATHS: u32 = 5;
/// After this many, it is suspect.
const MIN_DEATHS: u32 = 2;
/// How long a suspect runs alone before others may join. Each further death doubles it.
const TRIAL_TIME: Duration = Duration::from_secs(10);

/// A request or a call in a process, or on its way to one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Presence {
    /// When it was sent to the process that serves now.
    sent: Option<Instant>,
    /// The processes that died with it since its last token.
    n_deaths: u32,
}

impl Presence {
    pub(super) fn is_sent(self) -> bool {
        self.sent.is_some()
    }

    pub(super) fn send(&mut self, now: Instant) {
        self.sent = Some(now);
    }

    /// It has got a token. Returns whether it was suspect.
    pub(super) fn clear(&mut self) -> bool {
        std::mem::take(&mut self.n_deaths) >= MIN_DEATHS
    }

    /// The process has died. `is_alone`: it had nothing else. Returns whether this work is guilty.
    pub(super) fn process_died(&mut self, is_alone: bool) -> bool {
        if self.sent.take().is_none() {
            return false;
        }
        self.n_deaths += 1;
        is_alone && self.n_deaths >= MAX_DEATHS
    }

    fn is_suspect(self) -> bool {
        self.n_deaths >= MIN_DEATHS
    }

    fn is_on_trial(self, now: Instant) -> bool {
        let time = TRIAL_TIME * 2_u32.pow(self.n_deaths.min(10).saturating_sub(MIN_DEATHS));
        self.is_suspect() && self.sent.is_some_and(|sent| now.saturating_duration_since(sent) < time)
    }
}

/// Whether any of this work is suspect.
pub(super) fn has_suspects(mut work: impl Iterator<Item = Presence>) -> bool {
    work.any(Presence::is_suspect)
}

/// The work to send now, in its order. `work`: by number, in ascending order.
pub(super) fn to_send(work: &[(u64, Presence)], now: Instant) -> Vec<u64> {
    if work.iter().any(|(_, presence)| presence.is_on_trial(now)) {
        return Vec::new();
    }
    let unsent = || work.iter().filter(|(_, presence)| !presence.is_sent());
    let suspects = unsent().filter(|(_, presence)| presence.is_suspect());
    // Takes the first of equal ones: `max_by_key` takes the last.
    match suspects.rev().max_by_key(|(_, presence)| presence.n_deaths) {
        Some((number, _)) => vec![*number],
        None => unsent().map(|(number, _)| *number).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves work until the process dies of the guilty one, as often as `deaths` says. Returns what was found guilty.
    fn serve(guilty: u64, numbers: &[u64], progress: impl Fn(u64, u32) -> bool) -> (Vec<u64>, u32) {
        let now = Instant::now();
        let mut work: Vec<(u64, Presence)> = numbers.iter().map(|number| (*number, Presence::default())).collect();
        for n_processes in 1..100 {
            loop {
                let sent = to_send(&work, now);
                for (number, presence) in &mut work {
                    if sent.contains(number) {
                        presence.send(now);
                    }
                }
                let is_there =
                    |number: u64| work.iter().any(|(other, presence)| *other == number && presence.is_sent());
                if is_there(guilty) {
                    break;
                }
                // Without the guilty one, everything gets a token.
                assert!(!sent.is_empty(), "{work:?}");
                for (_, presence) in work.iter_mut().filter(|(_, presence)| presence.is_sent()) {
                    presence.clear();
                }
            }
            for (number, presence) in &mut work {
                if presence.is_sent() && *number != guilty && progress(*number, n_processes) {
                    presence.clear();
                }
            }
            let is_alone = work.iter().filter(|(_, presence)| presence.is_sent()).count() == 1;
            let found =
                work.iter_mut().filter_map(|(number, presence)| presence.process_died(is_alone).then_some(*number));
            let found: Vec<u64> = found.collect();
            if !found.is_empty() {
                return (found, n_processes);
            }
        }
        panic!("nothing is found guilty: {work:?}");
    }

    #[test]
    fn only_the_guilty_one_is_found() {
        for guilty in [1, 3, 6] {
            let kinds: [fn(u64, u32) -> bool; 3] =
                [|_, _| false, |_, _| true, |number, process| (number + u64::from(process)) % 2 == 0];
            for progress in kinds {
                let (found, n_processes) = serve(guilty, &[1, 2, 3, 4, 5, 6], progress);
                assert_eq!(found, [guilty]);
                assert!(n_processes <= MAX_DEATHS + 1, "{n_processes}");
            }
        }
        assert_eq!(serve(7, &[7], |_, _| false), (vec![7], MAX_DEATHS));
    }

    #[test]
    fn suspect_that_takes_long_lets_others_join() {
        let now = Instant::now();
        let suspect = Presence { n_deaths: MIN_DEATHS, sent: Some(now) };
        let work = [(1, suspect), (2, Presence::default())];
        assert!(to_send(&work, now).is_empty() && has_suspects(work.iter().map(|(_, presence)| *presence)));
        assert_eq!(to_send(&work, now + TRIAL_TIME), [2]);
        let later = [(1, Presence { n_deaths: MIN_DEATHS + 1, ..suspect }), work[1]];
        assert!(to_send(&later, now + TRIAL_TIME).is_empty());
    }
}
