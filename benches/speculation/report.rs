//! Tables, and a check of the goals.

use std::fmt::Write;

use super::common::yes;
use super::host::{Cost, Result};
use super::pairs::Pairs;
use super::peer::Models;
use super::ways::{Kind, Role, Row, Way};

/// The upper bound of the speed: the time of decodes without any overhead.
pub struct Limits {
    /// The time of one token in seconds.
    pub one: f64,
    /// The time in seconds of batches by number of tokens.
    target: Vec<(usize, f64)>,
    /// The time of a token of the draft in seconds.
    draft: f64,
}

/// On texts without repetitions, history drafters must reach this fraction of the plain speed.
const LOSSLESS: f64 = 0.99;
/// The number of cached tokens when decodes are measured.
const PAST: usize = 128;

impl Limits {
    /// Measured with llama.cpp's functions, for drafts of these lengths. If two tokens take less time than one (ggml has other kernels for one),
    /// the time of two is used for one, because it can be decoded together with another.
    pub fn measure(models: &mut Models, lengths: &[usize]) -> Result<Limits> {
        let repetitions = if models.batch_seconds(false, 1, PAST, 9)? > super::SLOW { 7 } else { 51 };
        let mut least = |draft: bool, repetitions: usize| -> Result<f64> {
            let one = models.batch_seconds(draft, 1, PAST, repetitions)?;
            Ok(one.min(models.batch_seconds(draft, 2, PAST, repetitions)?))
        };
        let (one, draft) = (least(false, repetitions)?, least(true, 51)?);
        let mut target = Vec::new();
        for n in lengths.iter().map(|length| length + 1) {
            target.push((n, models.batch_seconds(false, n, PAST, repetitions)?));
        }
        Ok(Limits { one, target, draft })
    }

    /// One line: v(n), the time of a batch of n tokens in units of one token, and c, the time of a drafted token in the same unit.
    pub fn text(&self) -> String {
        let v: Vec<String> = self.target.iter().map(|(n, time)| format!("v({n}) = {:.2}", time / self.one)).collect();
        format!("T(1) = {:.2} ms, c = {:.3}, {}\n", self.one * 1e3, self.draft / self.one, v.join(", "))
    }

    /// The maximum tokens per second of any fixed length, from the measured tokens per step. Nothing that decodes as much can be faster.
    fn cap(&self, ways: &[Way], rows: &[Row]) -> f64 {
        let speed = |(way, row): (&Way, &Row)| {
            let Role::Fixed { ours: true, n_max } = way.role else { return None };
            let (_, time) = self.target.iter().find(|(n, _)| *n == n_max + 1)?;
            Some(row.cost().tokens_per_step() / (time + n_max as f64 * self.draft))
        };
        ways.iter().zip(rows).filter_map(speed).fold(0.0, f64::max)
    }

    /// The share of time outside of decodes: drafting, sampling, queues. `None`: unknown.
    fn outside(&self, way: &Way, cost: &Cost) -> Option<f64> {
        let drafting = match way.role {
            Role::Ngram { ours: true, .. } if way.name != "auto" => 0.0,
            Role::Adaptive | Role::Fixed { ours: true, .. } | Role::Match { .. } | Role::Verify => {
                1e3 * self.draft * cost.drafted
            }
            _ => return None,
        };
        (cost.verify_ms > 0.0).then(|| (cost.ms - cost.verify_ms - drafting.min(cost.draft_ms)) / cost.ms)
    }

    /// The same for `adaptive`, with a target so large that it must be small.
    fn outside_goal(&self, ways: &[Way], cost: &Cost) -> Option<f64> {
        let adaptive = ways.iter().find(|way| way.role == Role::Adaptive).filter(|_| self.one > super::VERY_SLOW)?;
        self.outside(adaptive, cost)
    }
}

/// All configurations on one text. With `same`, all outputs of a side must equal its plain output.
pub fn table(title: &str, ways: &[Way], rows: &[Row], limits: &Limits, same: bool) -> String {
    let mut text = format!("{title}\n");
    let _ = writeln!(
        text,
        "{:34}{:>10}{:>10}{:>10}{:>13}{:>10}{:>10}{:>11}",
        "", "tokens/s", "speed-up", "accepted", "tokens/step", "us/draft", "outside", "same text"
    );
    let plain_of = |side: bool| ways.iter().zip(rows).find(|(way, _)| way.role == Role::Plain { ours: side });
    let texts = |side: bool| plain_of(side).map_or(&[][..], |(_, row)| row.tokens.as_slice());
    let plain = plain_of(true).map_or(f64::NAN, |(_, row)| row.speed());
    for (way, row) in ways.iter().zip(rows) {
        if let Some(why) = &row.missing {
            let _ = writeln!(text, "{:34}{:>10}   {}", way.name, "-", not_available(why));
            continue;
        }
        let cost = row.cost();
        let (steps, draft) = (cost.tokens_per_step(), draft_us(&cost));
        let number = |value: f64| if value.is_finite() { format!("{value:.2}") } else { "-".into() };
        let _ = writeln!(
            text,
            "{:34}{:>10.1}{:>10.2}{:>10}{:>13}{:>10}{:>10}{:>11}",
            way.name,
            row.speed(),
            row.speed() / plain,
            cost.acceptance(),
            number(steps),
            number(draft),
            limits.outside(way, &cost).map_or("-".into(), |share| format!("{:.1} %", 1e2 * share)),
            if same { agreement(&row.tokens, texts(way.is_ours())) } else { "-".into() },
        );
    }
    if same && texts(true) != texts(false) {
        // ggml has another attention kernel from 64 tokens on, and the two sides split prompts differently.
        let _ = writeln!(text, "llama.cpp's plain texts are ours in {}", agreement(texts(false), texts(true)));
    }
    text
}

/// The time per drafted token in microseconds. If hardly anything is drafted, the time of a lookup without result. NaN: unknown.
fn draft_us(cost: &Cost) -> f64 {
    1e3 * cost.draft_ms / cost.drafted.max(cost.steps)
}

fn agreement(texts: &[Vec<i32>], others: &[Vec<i32>]) -> String {
    let same = texts.iter().zip(others).filter(|(a, b)| a == b).count();
    if same == texts.len() { "yes".into() } else { format!("{same} of {}", texts.len()) }
}

fn not_available(why: &str) -> String {
    let line = why.lines().next().unwrap_or_default();
    let shown: String = line.chars().take(90).collect();
    format!("not available ({shown}{})", if shown.len() < line.len() { "..." } else { "" })
}

/// This library's fastest fixed lengths, and plain decoding.
pub fn fastest_fixed<'a>(ways: &'a [Way], rows: &[Row], most: usize) -> Vec<&'a Way> {
    let fixed = by_speed(ways, rows, |role| matches!(role, Role::Fixed { ours: true, .. })).take(most);
    fixed.chain(by_speed(ways, rows, |role| role == Role::Plain { ours: true })).collect()
}

/// llama.cpp's fastest rules.
pub fn their_fastest<'a>(ways: &'a [Way], rows: &[Row], most: usize) -> Vec<&'a Way> {
    let rules = [Role::Plain { ours: false }, Role::Ngram { ours: false, kind: Kind::Rule }];
    by_speed(ways, rows, |role| rules.contains(&role)).take(most).collect()
}

/// The configurations, the fastest first.
fn by_speed<'a>(ways: &'a [Way], rows: &[Row], among: impl Fn(Role) -> bool) -> impl Iterator<Item = &'a Way> {
    let ran = ways.iter().zip(rows).filter(|(way, row)| among(way.role) && row.missing.is_none());
    let mut ran: Vec<_> = ran.map(|(way, row)| (row.speed(), way)).collect();
    ran.sort_by(|a, b| b.0.total_cmp(&a.0));
    ran.into_iter().map(|(_, way)| way)
}

/// The result in units of the fastest compared configuration, with its name. `None`: nothing was compared.
fn of_the_fastest<'a>(pairs: &[Pairs<'a>]) -> Option<(f64, &'a str)> {
    let fastest = pairs.iter().max_by(|a, b| a.median().total_cmp(&b.median()))?;
    Some((1.0 / fastest.median(), fastest.way.name.as_str()))
}

/// The fastest of the configurations.
fn best<'a>(ways: &'a [Way], rows: &'a [Row], among: impl Fn(Role) -> bool) -> Option<(&'a Way, f64, Cost)> {
    let speeds = ways.iter().zip(rows).filter(|(way, row)| among(way.role) && row.missing.is_none());
    speeds.map(|(way, row)| (way, row.speed(), row.cost())).max_by(|a, b| a.1.total_cmp(&b.1))
}

/// One line for each text, and the goals.
#[derive(Default)]
pub struct Summary {
    draft: String,
    ngram: String,
    /// The number of goals that are met, and of all goals.
    met: usize,
    goals: usize,
}

impl Summary {
    fn goal(&mut self, holds: bool) -> &'static str {
        self.goals += 1;
        self.met += usize::from(holds);
        yes(holds)
    }

    /// The draft model on one text. `pairs`: fixed lengths and plain decoding, compared with `adaptive`.
    pub fn add_draft(
        &mut self,
        model: &str,
        title: &str,
        ways: &[Way],
        rows: &[Row],
        pairs: &[Pairs],
        limits: &Limits,
    ) {
        let speed = |role: Role| best(ways, rows, |other| other == role);
        let (Some((_, plain, _)), Some((_, ours, cost))) = (speed(Role::Plain { ours: true }), speed(Role::Adaptive))
        else {
            let _ = writeln!(self.draft, "{model:28}{title:28}  nothing to compare");
            return;
        };
        let is_fixed = |role| matches!(role, Role::Plain { ours: true } | Role::Fixed { ours: true, .. });
        let by_rows = || best(ways, rows, is_fixed).map(|(way, fixed, _)| (ours / fixed, way.name.as_str()));
        let (of_it, fixed) = of_the_fastest(pairs).or_else(by_rows).unwrap_or((f64::NAN, ""));
        let of_plain = pairs.iter().find(|pair| pair.way.role == Role::Plain { ours: true });
        let of_plain = of_plain.map_or(ours / plain, |pair| 1.0 / pair.median());
        let theirs =
            best(ways, rows, |role| matches!(role, Role::Plain { ours: false } | Role::Fixed { ours: false, .. }));
        let (theirs, their_name) = theirs.map_or((f64::NAN, ""), |(way, speed, _)| (speed, way.name.as_str()));
        // A length must be faster than plain decoding by this factor to count as paying, because of measurement noise.
        let pays = of_plain > 1.02 * of_it;
        let goals = if pays {
            let of_best = self.goal(of_it >= 0.95);
            let faster = self.goal(ours > theirs);
            format!(".95 of best: {of_best}, faster than llama.cpp: {faster}")
        } else {
            format!("nothing pays; {of_plain:.3} of plain, .98: {}", self.goal(of_plain >= 0.98))
        };
        let outside = limits.outside_goal(ways, &cost).map_or(String::new(), |share| {
            format!("; outside decodes {:.1} %, under 2: {}", 1e2 * share, self.goal(share < 0.02))
        });
        let coupling = self.coupling(ways, rows);
        let _ = writeln!(
            self.draft,
            "{model:28}{title:28}{plain:9.1}{ours:10.1}{:10.2}{:>10}{:>10.2}{:>7.2}  {:12}{:>7.2}  {:36}{:>6.2}   {goals}{outside}{coupling}",
            ours / plain,
            cost.acceptance(),
            cost.tokens_per_step(),
            (limits.cap(ways, rows) / plain).max(1.0),
            fixed,
            of_it,
            format!("{their_name} {theirs:.1}"),
            ours / theirs,
        );
    }

    /// Whether `coupled` accepts as much as `match`, if both were run.
    fn coupling(&mut self, ways: &[Way], rows: &[Row]) -> String {
        let cost = |role: Role| best(ways, rows, |other| other == role).map(|(.., cost)| cost);
        let Some(compared) = cost(Role::Match { n_max: 3 }) else { return String::new() };
        let Some(coupled) = cost(Role::Fixed { ours: true, n_max: 3 }) else { return String::new() };
        let rate = |cost: &Cost| cost.accepted / cost.drafted;
        let holds = self.goal(rate(&coupled) >= rate(&compared));
        format!("; coupled {} against match {}: {holds}", coupled.acceptance(), compared.acceptance())
    }

    /// History drafters on texts with repetitions: as fast as llama.cpp's best, with little drafting time. `compared`: this library's configurations
    /// compared with llama.cpp's fastest rules.
    pub fn add_ngram(&mut self, model: &str, title: &str, ways: &[Way], rows: &[Row], compared: &[(&Way, Vec<Pairs>)]) {
        let speed = |among: &dyn Fn(Role) -> bool| {
            best(ways, rows, among).map_or((f64::NAN, ""), |(way, speed, _)| (speed, way.name.as_str()))
        };
        let (plain, _) = speed(&|role| role == Role::Plain { ours: true });
        let rules = [Role::Plain { ours: false }, Role::Ngram { ours: false, kind: Kind::Rule }];
        let (rule, name) = speed(&|role| rules.contains(&role));
        let (with_static, _) = speed(&|role| role == Role::Ngram { ours: false, kind: Kind::Static });
        let _ = write!(self.ngram, "{model:28}{title:28}{plain:9.1}  {:38}", format!("{name} {rule:.1}"));
        for (way, row) in ways.iter().zip(rows) {
            let speed = row.speed();
            let of_theirs = match way.role {
                Role::Ngram { ours: true, kind: Kind::General } => {
                    let compared = compared.iter().find(|(other, _)| other.name == way.name);
                    compared.and_then(|(_, pairs)| of_the_fastest(pairs)).map_or(speed / rule, |(of_it, _)| of_it)
                }
                Role::Ngram { ours: true, kind: Kind::Static } => speed / with_static,
                _ => continue,
            };
            let shown = if row.missing.is_some() {
                "not available".into()
            } else {
                let holds = self.goal(of_theirs >= 1.0);
                format!("{speed:.1} ({:.2}, {of_theirs:.2} of theirs: {holds})", speed / plain)
            };
            // The type auto can also use the draft model.
            let us = draft_us(&row.cost());
            let quick = if us.is_finite() && way.name != "auto" {
                format!(", under 2 us a draft: {}", self.goal(us < 2.0))
            } else {
                String::new()
            };
            let _ = write!(self.ngram, "  {} {shown}{quick}", way.name);
        }
        self.ngram.push('\n');
    }

    /// History drafters on texts without repetitions: no cost.
    pub fn add_pairs(&mut self, model: &str, title: &str, pairs: &[Pairs]) {
        let _ = write!(self.ngram, "{model:28}{title:28}  .99 of plain:");
        for pair in pairs {
            let holds = self.goal(pair.median() >= LOSSLESS);
            let _ = write!(self.ngram, "  {} {:.3} {holds}", pair.way.name, pair.median());
        }
        self.ngram.push('\n');
    }

    /// The complete report.
    pub fn text(&self) -> String {
        let mut text = String::from("## Summary\n\n");
        if !self.draft.is_empty() {
            let _ = writeln!(
                text,
                "{:28}{:28}{:>9}{:>10}{:>10}{:>10}{:>10}{:>7}  {:12}{:>7}  {:36}{:>6}   goals",
                "target",
                "with the draft model",
                "plain",
                "adaptive",
                "speed-up",
                "accepted",
                "tok/step",
                "cap",
                "best fixed",
                "of it",
                "llama.cpp's best",
                "ours/"
            );
            text += &self.draft;
            text.push('\n');
        }
        if !self.ngram.is_empty() {
            let _ = writeln!(
                text,
                "{:28}{:28}{:>9}  {:40}  ours (speed-up, of theirs)",
                "target", "from the text", "plain", "llama.cpp's best"
            );
            text += &self.ngram;
            text.push('\n');
        }
        let _ = writeln!(
            text,
            "goals met: {} of {}. Speed-ups are over our plain speed; cap: what v(n), c and the measured\n\
             tokens a step allow the best fixed length. Each text counts by its fastest run; \"of it\", \"of theirs\" and\n\
             \"of plain\" are medians of runs just before and after one another, or by the fastest runs where there was no time for that.",
            self.met, self.goals
        );
        text
    }
}
