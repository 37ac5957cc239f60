//! An SVG chart of [`LookupStats`]: the acceptance rate by n-gram size and by position in the draft.

use std::fmt::Write as _;
use std::ops::Range;

use super::tools::{Acceptance, LookupStats};

const WIDTH: f64 = 920.0;
const HEIGHT: f64 = 470.0;
/// The y coordinates of 100 % and of 0 % in both panels.
const TOP: f64 = 120.0;
const BOTTOM: f64 = 360.0;
const SIZES: Range<f64> = 64.0..380.0;
const POSITIONS: Range<f64> = 460.0..890.0;

/// Colours that are distinguishable on white, on black, and with colour blindness (Okabe and Ito).
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
    /// An SVG file: acceptance by n-gram size (bars), and by n-gram size and position in the draft (lines; the size of a dot
    /// shows the number of tokens). Self-contained; follows the viewer's light or dark theme.
    pub fn plot(&self) -> String {
        let mut svg = String::new();
        // Writing to a string does not fail.
        let _ = self.draw(&mut svg);
        svg
    }

    fn draw(&self, svg: &mut String) -> std::fmt::Result {
        let series: Vec<&[Acceptance]> = self.by_size.iter().chain([&self.static_cache]).map(Vec::as_slice).collect();
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

/// The y coordinate of a rate from 0 to 1.
fn height(rate: f64) -> f64 {
    BOTTOM - rate * (BOTTOM - TOP)
}

/// A panel's title and its grid lines.
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

fn bars(svg: &mut String, series: &[&[Acceptance]]) -> std::fmt::Result {
    let step = (SIZES.end - SIZES.start) / SERIES.len() as f64;
    for (i, ((name, colour), counts)) in SERIES.iter().zip(series).enumerate() {
        let middle = SIZES.start + step * (i as f64 + 0.5);
        let sum: Acceptance = counts.iter().copied().sum();
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

fn lines(svg: &mut String, series: &[&[Acceptance]]) -> std::fmt::Result {
    // Up to the last position with drafted tokens.
    let last = |counts: &&[Acceptance]| counts.iter().rposition(|count| count.drafted > 0).map_or(0, |at| at + 1);
    let positions = series.iter().map(last).max().unwrap_or(0).max(1);
    let most = series.iter().copied().flatten().map(|count| count.drafted).max().unwrap_or(0).max(1);
    let step = (POSITIONS.end - POSITIONS.start) / positions as f64;
    let x = |position: usize| POSITIONS.start + step * (position as f64 + 0.5);
    for ((name, colour), counts) in SERIES.iter().zip(series) {
        let mut path = String::new();
        let mut dots = String::new();
        for (position, count) in counts.iter().enumerate() {
            let Some(rate) = count.rate() else { continue };
            let (x, y) = (x(position), height(rate));
            write!(path, "{}{x:.1} {y:.1}", if path.is_empty() { 'M' } else { 'L' })?;
            let radius = 2.0 + 5.0 * (count.drafted as f64 / most as f64).sqrt();
            writeln!(
                dots,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\" fill=\"{colour}\"><title>{name}, position {}: {} of {} \
                 accepted ({})</title></circle>",
                position + 1,
                count.accepted,
                count.drafted,
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
mod tests {
    use super::super::{Cache, lookup_stats};
    use super::{Acceptance, LookupStats, grouped};

    fn stats() -> LookupStats {
        let text: Vec<i32> = (0..4000).map(|i| (i * i / 5) % 17 + i % 3).collect();
        let before: Vec<i32> = (0..4000).map(|i| (i * i / 5) % 17).collect();
        let mut static_cache = Cache::new();
        static_cache.update(&before, before.len(), super::super::Sizes::STATIC);
        lookup_stats(&text, 6, 500, &mut Cache::new(), &static_cache, &mut |_| std::ops::ControlFlow::Continue(()))
            .unwrap()
    }

    /// Asserts that tags are nested correctly and coordinates are inside the picture.
    fn check(svg: &str) {
        let mut open = Vec::new();
        for tag in svg.split('<').skip(1) {
            let (tag, _) = tag.split_once('>').expect("a tag ends");
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name), "{tag}");
            } else if !tag.ends_with('/') {
                open.push(tag.split(' ').next().expect("a name"));
            }
            for attribute in ["x=", "y=", "cx=", "cy=", "width=", "height=", "r="] {
                for value in tag.split(' ').filter_map(|part| part.strip_prefix(attribute)) {
                    let value: f64 = value.trim_matches(['"', '/']).parse().expect("a number");
                    assert!((0.0..=super::WIDTH).contains(&value), "{tag}");
                }
            }
        }
        assert!(open.is_empty(), "{open:?}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn each_position_has_a_dot() {
        let stats = stats();
        assert!(stats.all().accepted > 0 && stats.static_cache.iter().any(|count| count.drafted > 0), "{stats:?}");
        let svg = stats.plot();
        check(&svg);
        for (counts, name) in stats.by_size.iter().chain([&stats.static_cache]).zip(super::SERIES.map(|(name, _)| name))
        {
            for (count, position) in counts.iter().zip(1..) {
                let title = format!("{name}, position {position}: {} of {} accepted", count.accepted, count.drafted);
                assert_eq!(svg.contains(&title), count.drafted > 0, "{title}");
            }
        }
        let all = stats.all();
        assert!(svg.contains(&format!("{} of {} accepted", grouped(all.accepted), grouped(all.drafted))));
    }

    #[test]
    fn empty_and_huge_statistics_are_plotted() {
        check(&LookupStats::default().plot());
        let many = vec![Acceptance { drafted: usize::MAX / 100_000, accepted: 1 }; 5000];
        check(&LookupStats { by_size: std::array::from_fn(|_| many.clone()), ..LookupStats::default() }.plot());
    }

    #[test]
    fn digits_are_grouped_by_thousands() {
        for (number, expected) in [(0, "0"), (999, "999"), (1000, "1 000"), (1_234_567, "1 234 567")] {
            assert_eq!(grouped(number).replace('\u{a0}', " "), expected);
        }
    }
}
