//! Measures small differences between configurations.
//!
//! A few percent are much less than the effect of other load. So each configuration is compared with one common configuration that runs
//! immediately before and after it, on the same text, and the median of many such comparisons is used.

use std::fmt::Write;

use super::common::median;
use super::host::Result;
use super::ways::{Sides, Task, Way};

/// A configuration, compared with the common one.
pub struct Pairs<'a> {
    pub way: &'a Way,
    /// The ratio of its speed to the common one's, for each comparison, ascending.
    ratios: Vec<f64>,
}

/// Compares configurations with `common`, on all texts and repetitions of the task.
pub fn measure<'a>(sides: &mut Sides, task: &Task, common: &Way, others: &[&'a Way]) -> Result<Vec<Pairs<'a>>> {
    let mut pairs: Vec<_> = others.iter().map(|way| Pairs { way, ratios: Vec::new() }).collect();
    if others.is_empty() {
        return Ok(pairs);
    }
    let texts = sides.texts(task)?;
    for text in std::iter::repeat_n(&texts, task.amount.repetitions).flatten() {
        let mut speed = |way: &Way| -> Result<f64> { Ok(sides.generate(task, way, text)?.0.speed()) };
        let mut before = speed(common)?;
        for pair in &mut pairs {
            let with = speed(pair.way)?;
            let after = speed(common)?;
            pair.ratios.push(2.0 * with / (before + after));
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

    /// The 95 % confidence interval of the median: order statistics, with the normal approximation of the binomial distribution.
    fn interval(&self) -> (f64, f64) {
        let (n, half) = (self.ratios.len() as f64, 0.98 * (self.ratios.len() as f64).sqrt());
        let at = |place: f64| self.ratios.get(place.clamp(0.0, n - 1.0) as usize).copied().unwrap_or(f64::NAN);
        (at(n / 2.0 - half), at(n / 2.0 + half))
    }
}

/// One line for each configuration. `common`: the configuration they were compared with.
pub fn table(title: &str, common: &Way, pairs: &[Pairs]) -> String {
    if pairs.is_empty() {
        return String::new();
    }
    let mut text = format!("{title}: speed in units of that of \"{}\" before and after\n", common.name);
    let _ = writeln!(text, "{:34}{:>10}{:>18}", "", "median", "95 % interval");
    for pair in pairs {
        let (low, high) = pair.interval();
        let interval = format!("{low:.3} to {high:.3}");
        let _ = writeln!(text, "{:34}{:>10.3}{interval:>18}", pair.way.name, pair.median());
    }
    text
}
