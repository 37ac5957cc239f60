//! A picture of [`LookupStats`]: how many of the drafted tokens were right, by n-gram size and by position.

use std::fmt::Write as _;
use std::ops::Range;

use super::stats::{LookupStats, Tally};

const WIDTH: f64 = 920.0;
const HEIGHT: f64 = 470.0;
/// Both panels, from 100 % down to 0 %.
const TOP: f64 = 120.0;
const BOTTOM: f64 = 360.0;
const SIZES: Range<f64> = 64.0..380.0;
const POSITIONS: Range<f64> = 460.0..890.0;

/// Colours that are told apart on white and on black, and with every kind of colour blindness (Okabe and Ito).
const SERIES: [(&str, &str); 5] = [
    ("1-grams", "#0072b2"),
    ("2-grams", "#e69f00"),
    ("3-grams", "#009e73"),
    ("4-grams", "#d55e00"),
    ("static 2-grams", "#a6669a"),
];

const STYLE: &str = "\
svg{--paper:#ffffff;--ink:#1f2328;--soft:#656d76;--line:#d8dee4;font:13px system-ui,-apple-system,'Segoe UI',sans-serif}\
@media(prefers-color-scheme:dark){svg{--paper:#0d1117;--ink:#e6edf3;--soft:#9198a1;--line:#30363d}}\
text{fill:var(--ink)}.soft{fill:var(--soft);font-size:12px}.title{font-size:20px;font-weight:600}\
.panel{font-size:14px;font-weight:600}.line{stroke:var(--line)}.middle{text-anchor:middle}.right{text-anchor:end}";

impl LookupStats {
    /// An SVG file: acceptance by n-gram size (bars) and by n-gram size and position in the draft (lines, whose dots are
    /// the larger the more tokens they stand for). It needs nothing else, and follows the reader's light or dark theme.
    pub fn plot(&self) -> String {
        let mut svg = String::new();
        // Writing to a string does not fail.
        let _ = self.draw(&mut svg);
        svg
    }

    fn draw(&self, svg: &mut String) -> std::fmt::Result {
        let series: Vec<&[Tally]> = self.by_size.iter().chain([&self.static_cache]).map(Vec::as_slice).collect();
        write!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-label=\"Acceptance of drafted tokens\">\n<style>{STYLE}</style>\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"8\" fill=\"var(--paper)\"/>\n"
        )?;
        text(svg, 24.0, 38.0, "title", "Acceptance of drafted tokens")?;
        let all = self.all();
        let [drafted, accepted] = [all.drafted, all.accepted].map(grouped);
        let rate = all.rate().map_or_else(String::new, |rate| format!(" ({})", percent(rate)));
        let predicted = grouped(self.n_predict);
        let n_draft = self.n_draft;
        let line = format!(
            "{accepted} of {drafted} accepted{rate}, in a text of {predicted} tokens, drafts of up to {n_draft}"
        );
        text(svg, 24.0, 60.0, "soft", &line)?;
        axes(svg, SIZES, "by n-gram size")?;
        axes(svg, POSITIONS, "by position in the draft")?;
        bars(svg, &series)?;
        lines(svg, &series)?;
        legend(svg)?;
        svg.push_str("</svg>\n");
        Ok(())
    }
}

fn text(svg: &mut String, x: f64, y: f64, class: &str, text: &str) -> std::fmt::Result {
    writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{text}</text>")
}

/// Where a rate is, from 0 at the bottom to 1 at the top.
fn height(rate: f64) -> f64 {
    BOTTOM - rate * (BOTTOM - TOP)
}

/// A panel's name and its lines at each quarter.
fn axes(svg: &mut String, x: Range<f64>, name: &str) -> std::fmt::Result {
    text(svg, x.start - 40.0, TOP - 26.0, "panel", name)?;
    for quarter in 0..=4 {
        let rate = f64::from(quarter) / 4.0;
        let y = height(rate);
        writeln!(svg, "<path class=\"line\" d=\"M{:.1} {y:.1}H{:.1}\"/>", x.start, x.end)?;
        text(svg, x.start - 8.0, y + 4.0, "soft right", &format!("{:.0} %", 100.0 * rate))?;
    }
    Ok(())
}

fn bars(svg: &mut String, series: &[&[Tally]]) -> std::fmt::Result {
    let step = (SIZES.end - SIZES.start) / SERIES.len() as f64;
    for (i, ((name, colour), tallies)) in SERIES.iter().zip(series).enumerate() {
        let middle = SIZES.start + step * (i as f64 + 0.5);
        let sum: Tally = tallies.iter().copied().sum();
        if let Some(rate) = sum.rate() {
            let (x, y, width) = (middle - 0.31 * step, height(rate), 0.62 * step);
            let size = (BOTTOM - y).max(1.0);
            writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{size:.1}\" rx=\"2\" fill=\"{colour}\">\
                 <title>{name}: {} of {} accepted</title></rect>",
                sum.accepted, sum.drafted
            )?;
            text(svg, middle, y - 6.0, "middle", &percent(rate))?;
        }
        let short = name.split(' ').next().unwrap_or(name);
        text(svg, middle, BOTTOM + 18.0, "middle", short)?;
        let below = if sum.drafted == 0 { "none".to_owned() } else { grouped(sum.drafted) };
        text(svg, middle, BOTTOM + 34.0, "soft middle", &below)?;
    }
    text(svg, f64::midpoint(SIZES.start, SIZES.end), BOTTOM + 54.0, "soft middle", "drafted tokens")
}

fn lines(svg: &mut String, series: &[&[Tally]]) -> std::fmt::Result {
    // As far as anything was drafted.
    let last = |tallies: &&[Tally]| tallies.iter().rposition(|tally| tally.drafted > 0).map_or(0, |at| at + 1);
    let positions = series.iter().map(last).max().unwrap_or(0).max(1);
    let most = series.iter().copied().flatten().map(|tally| tally.drafted).max().unwrap_or(0).max(1);
    let step = (POSITIONS.end - POSITIONS.start) / positions as f64;
    let x = |position: usize| POSITIONS.start + step * (position as f64 + 0.5);
    for ((name, colour), tallies) in SERIES.iter().zip(series) {
        let mut path = String::new();
        let mut dots = String::new();
        for (position, tally) in tallies.iter().enumerate() {
            let Some(rate) = tally.rate() else { continue };
            let (x, y) = (x(position), height(rate));
            write!(path, "{}{x:.1} {y:.1}", if path.is_empty() { 'M' } else { 'L' })?;
            let radius = 2.0 + 5.0 * (tally.drafted as f64 / most as f64).sqrt();
            writeln!(
                dots,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\" fill=\"{colour}\"><title>{name}, position {}: {} of {} \
                 accepted ({})</title></circle>",
                position + 1,
                tally.accepted,
                tally.drafted,
                percent(rate)
            )?;
        }
        writeln!(svg, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n{dots}")?;
    }
    for position in (0..positions).step_by(positions.div_ceil(16)) {
        text(svg, x(position), BOTTOM + 18.0, "middle", &(position + 1).to_string())?;
    }
    let middle = f64::midpoint(POSITIONS.start, POSITIONS.end);
    text(svg, middle, BOTTOM + 54.0, "soft middle", "the larger a dot, the more tokens were drafted there")
}

fn legend(svg: &mut String) -> std::fmt::Result {
    let mut x = 64.0;
    for (name, colour) in SERIES {
        writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"5\" fill=\"{colour}\"/>", HEIGHT - 26.0)?;
        text(svg, x + 11.0, HEIGHT - 21.5, "", name)?;
        x += 104.0;
    }
    text(svg, x + 40.0, HEIGHT - 21.5, "soft", "1- to 4-grams: of context and dynamic caches")
}

fn percent(rate: f64) -> String {
    format!("{:.1} %", 100.0 * rate)
}

/// A number with spaces between its thousands.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (digit, left) in digits.chars().zip((0..digits.len()).rev()) {
        grouped.push(digit);
        if left > 0 && left % 3 == 0 {
            grouped.push('\u{a0}');
        }
    }
    grouped
}

#[cfg(test)]
#[path = "plot_tests.rs"]
mod tests;
