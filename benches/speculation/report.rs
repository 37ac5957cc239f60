//! Tables, and what of the goals is met.

use std::fmt::Write;

use super::common::yes;
use super::host::{Cost, Result};
use super::pairs::Pairs;
use super::peer::Models;
use super::ways::{Kind, Role, Row, Way};

/// What bounds the speed: what evaluations alone take.
pub struct Limits {
    /// Seconds for one token.
    pub one: f64,
    /// Seconds for batches of so many tokens.
    target: Vec<(usize, f64)>,
    /// Seconds for a token of the draft.
    draft: f64,
}

/// Where nothing repeats, drafting from the text is to have so much of the plain speed.
const LOSSLESS: f64 = 0.99;
/// Tokens in the memory while evaluations are measured.
const PAST: usize = 128;

impl Limits {
    /// Measured with llama.cpp's functions alone, for drafts of these lengths. Where two tokens take less time than one (ggml's
    /// kernels for one are others), so does one: it can be evaluated with another.
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

    /// One line: v(n), a batch of n tokens in evaluations of one, and c, a drafted token in the same unit.
    pub fn text(&self) -> String {
        let v: Vec<String> = self.target.iter().map(|(n, time)| format!("v({n}) = {:.2}", time / self.one)).collect();
        format!("T(1) = {:.2} ms, c = {:.3}, {}\n", self.one * 1e3, self.draft / self.one, v.join(", "))
    }

    /// The most tokens a second of any fixed length, by the tokens a step that were measured: nothing that evaluates as much
    /// can be faster.
    fn cap(&self, ways: &[Way], rows: &[Row]) -> f64 {
        let speed = |(way, row): (&Way, &Row)| {
            let Role::Fixed { ours: true, n_max } = way.role else { return None };
            let (_, time) = self.target.iter().find(|(n, _)| *n == n_max + 1)?;
            Some(row.cost().tokens_per_step() / (time + n_max as f64 * self.draft))
        };
        ways.iter().zip(rows).filter_map(speed).fold(0.0, f64::max)
    }

    /// The share of the time that is spent outside evaluations: what drafting, sampling, queues take. `None`: not known.
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

    /// That of `adaptive`, with a target so large that it has to be small.
    fn outside_goal(&self, ways: &[Way], cost: &Cost) -> Option<f64> {
        let adaptive = ways.iter().find(|way| way.role == Role::Adaptive).filter(|_| self.one > super::VERY_SLOW)?;
        self.outside(adaptive, cost)
    }
}

/// Every way on one text. With `same`, all of a side must have written the same as its plain way.
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
        // ggml has another attention for 64 tokens and more at once, and the sides cut prompts differently.
        let _ = writeln!(text, "llama.cpp's plain texts are ours in {}", agreement(texts(false), texts(true)));
    }
    text
}

/// Microseconds for a drafted token; where hardly anything is drafted, for a look that finds nothing. NaN: not known.
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

/// Our fixed lengths that were the fastest, and plain decoding.
pub fn fastest_fixed<'a>(ways: &'a [Way], rows: &[Row], most: usize) -> Vec<&'a Way> {
    let fixed = by_speed(ways, rows, |role| matches!(role, Role::Fixed { ours: true, .. })).take(most);
    fixed.chain(by_speed(ways, rows, |role| role == Role::Plain { ours: true })).collect()
}

/// llama.cpp's rules that were the fastest.
pub fn their_fastest<'a>(ways: &'a [Way], rows: &[Row], most: usize) -> Vec<&'a Way> {
    let rules = [Role::Plain { ours: false }, Role::Ngram { ours: false, kind: Kind::Rule }];
    by_speed(ways, rows, |role| rules.contains(&role)).take(most).collect()
}

/// Some ways, the fastest first.
fn by_speed<'a>(ways: &'a [Way], rows: &[Row], among: impl Fn(Role) -> bool) -> impl Iterator<Item = &'a Way> {
    let ran = ways.iter().zip(rows).filter(|(way, row)| among(way.role) && row.missing.is_none());
    let mut ran: Vec<_> = ran.map(|(way, row)| (row.speed(), way)).collect();
    ran.sort_by(|a, b| b.0.total_cmp(&a.0));
    ran.into_iter().map(|(_, way)| way)
}

/// What is compared with, in units of the fastest of it, and which that is. `None`: nothing was compared.
fn of_the_fastest<'a>(pairs: &[Pairs<'a>]) -> Option<(f64, &'a str)> {
    let fastest = pairs.iter().max_by(|a, b| a.median().total_cmp(&b.median()))?;
    Some((1.0 / fastest.median(), fastest.way.name.as_str()))
}

/// The fastest of some ways.
fn best<'a>(ways: &'a [Way], rows: &'a [Row], among: impl Fn(Role) -> bool) -> Option<(&'a Way, f64, Cost)> {
    let speeds = ways.iter().zip(rows).filter(|(way, row)| among(way.role) && row.missing.is_none());
    speeds.map(|(way, row)| (way, row.speed(), row.cost())).max_by(|a, b| a.1.total_cmp(&b.1))
}

/// One line for each text, and the goals.
#[derive(Default)]
pub struct Summary {
    draft: String,
    ngram: String,
    /// Goals met, and how many there are.
    met: usize,
    goals: usize,
}

impl Summary {
    fn goal(&mut self, holds: bool) -> &'static str {
        self.goals += 1;
        self.met += usize::from(holds);
        yes(holds)
    }

    /// The draft model on one text; `pairs`: fixed lengths and plain decoding, compared with `adaptive`.
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
        // A few percent are the noise of the machine: by so much a length must be faster than none to say that it pays.
        let pays = of_plain > 1.02 * of_it;
        let goals = if pays {
            let of_best = self.goal(of_it >= 0.95);
            let faster = self.goal(ours > theirs);
            format!(".95 of best: {of_best}, faster than llama.cpp: {faster}")
        } else {
            format!("nothing pays; {of_plain:.3} of plain, .98: {}", self.goal(of_plain >= 0.98))
        };
        let outside = limits.outside_goal(ways, &cost).map_or(String::new(), |share| {
            format!("; outside evaluations {:.1} %, under 2: {}", 1e2 * share, self.goal(share < 0.02))
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

    /// Whether `coupled` accepts as much as `match` does, where both were run.
    fn coupling(&mut self, ways: &[Way], rows: &[Row]) -> String {
        let cost = |role: Role| best(ways, rows, |other| other == role).map(|(.., cost)| cost);
        let Some(compared) = cost(Role::Match { n_max: 3 }) else { return String::new() };
        let Some(coupled) = cost(Role::Fixed { ours: true, n_max: 3 }) else { return String::new() };
        let rate = |cost: &Cost| cost.accepted / cost.drafted;
        let holds = self.goal(rate(&coupled) >= rate(&compared));
        format!("; coupled {} against match {}: {holds}", coupled.acceptance(), compared.acceptance())
    }

    /// Drafting from the text where it repeats itself: to be as fast as llama.cpp's best, and to be quick itself. `compared`:
    /// what of ours was compared with llama.cpp's fastest rules.
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
            // The type auto may have the draft model draft, too.
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

    /// Drafting from the text where nothing repeats: to cost nothing.
    pub fn add_pairs(&mut self, model: &str, title: &str, pairs: &[Pairs]) {
        let _ = write!(self.ngram, "{model:28}{title:28}  .99 of plain:");
        for pair in pairs {
            let holds = self.goal(pair.median() >= LOSSLESS);
            let _ = write!(self.ngram, "  {} {:.3} {holds}", pair.way.name, pair.median());
        }
        self.ngram.push('\n');
    }

    /// Everything.
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
