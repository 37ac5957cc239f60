//! What looking for drafts costs where there are none to be found.
//!
//! A percent is far less than what a disturbance of the machine takes, so the same text is written plainly before and after
//! each other way, and the median of many such comparisons counts.

use std::fmt::Write;
use std::time::Instant;

use super::common::{median, yes};
use super::host::{Host, Result};
use super::ways::{Role, Task, Way, forget};

/// The goal: of the plain speed.
const GOAL: f64 = 0.99;

/// One of our ways against plain decoding.
pub struct Pairs<'a> {
    pub way: &'a Way,
    /// Its speed in units of the plain one, once for each comparison, from small to large.
    ratios: Vec<f64>,
}

/// Our ways that draft, each `rounds` times beside plain decoding. The texts are the seeds' with the task's first prompt.
pub fn measure<'a>(host: &Host, task: &Task, ways: &'a [Way], rounds: usize) -> Result<Vec<Pairs<'a>>> {
    let prompt = task.prompts.first().ok_or("there are no prompts")?;
    let plain = ways.iter().find(|way| way.role == Role::Plain { ours: true }).ok_or("no plain way")?;
    let seconds = |way: &Way, seed: u32| -> Result<f64> {
        forget(host)?;
        let start = Instant::now();
        way.respond(host, task, prompt, seed)?;
        Ok(start.elapsed().as_secs_f64())
    };
    let ours = ways.iter().filter(|way| way.is_ours() && way.role != plain.role);
    let mut pairs: Vec<_> = ours.map(|way| Pairs { way, ratios: Vec::new() }).collect();
    for round in 0..rounds {
        let seed = u32::try_from(round + 1)?;
        let mut before = seconds(plain, seed)?;
        for pair in &mut pairs {
            let with = seconds(pair.way, seed)?;
            let after = seconds(plain, seed)?;
            pair.ratios.push((before + after) / (2.0 * with));
            before = after;
        }
    }
    pairs.iter_mut().for_each(|pair| pair.ratios.sort_by(f64::total_cmp));
    Ok(pairs)
}

impl Pairs<'_> {
    pub fn median(&self) -> f64 {
        median(self.ratios.clone())
    }

    /// The median is within these in 95 % of all measurements: order statistics, by the binomial distribution's normal limit.
    fn interval(&self) -> (f64, f64) {
        let (n, half) = (self.ratios.len() as f64, 0.98 * (self.ratios.len() as f64).sqrt());
        let at = |place: f64| self.ratios.get(place.clamp(0.0, n - 1.0) as usize).copied().unwrap_or(f64::NAN);
        (at(n / 2.0 - half), at(n / 2.0 + half))
    }

    /// Whether it costs less than the goal allows.
    pub fn holds(&self) -> bool {
        self.median() >= GOAL
    }
}

/// One line for each way.
pub fn table(title: &str, pairs: &[Pairs]) -> String {
    let mut text = format!("{title}: speed in units of the plain one before and after\n");
    let _ = writeln!(text, "{:34}{:>10}{:>18}{:>8}", "", "median", "95 % interval", "> .99");
    for pair in pairs {
        let (low, high) = pair.interval();
        let interval = format!("{low:.3} to {high:.3}");
        let _ = writeln!(text, "{:34}{:>10.3}{interval:>18}{:>8}", pair.way.name, pair.median(), yes(pair.holds()));
    }
    text
}
