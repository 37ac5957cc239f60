//! The plot of speed-up against draft length: an SVG for light and dark pages.

use std::fmt::Write;

use super::ways::{Role, Row, Way};

/// One diagram: a text with a pair of models.
pub struct Panel {
    /// The names of the target and of the text.
    titles: [String; 2],
    /// The speed-ups over plain decoding by draft length, of this library and of llama.cpp.
    ours: Vec<(f64, f64)>,
    theirs: Vec<(f64, f64)>,
    /// The average draft length of `adaptive`, and its speed-up.
    chosen: Option<(f64, f64)>,
}

impl Panel {
    /// The panel of these measurements.
    pub fn of(target: &str, text: &str, ways: &[Way], rows: &[Row]) -> Panel {
        let measured = || ways.iter().zip(rows).filter(|(_, row)| row.missing.is_none());
        let plain = measured().find(|(way, _)| way.role == Role::Plain { ours: true });
        let plain = plain.map_or(f64::NAN, |(_, row)| row.speed());
        let curve = |whose: bool| {
            let mut points: Vec<(f64, f64)> = Vec::new();
            for (way, row) in measured() {
                let n_max = match way.role {
                    Role::Plain { ours } if ours == whose => 0,
                    Role::Fixed { ours, n_max } if ours == whose => n_max,
                    _ => continue,
                };
                // Keeps the faster one of two configurations with the same length.
                let point = (n_max as f64, row.speed() / plain);
                match points.iter_mut().find(|other| other.0 == point.0) {
                    Some(other) => other.1 = other.1.max(point.1),
                    None => points.push(point),
                }
            }
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points
        };
        let chosen = measured().find(|(way, _)| way.role == Role::Adaptive).map(|(_, row)| {
            let drafted = row.cost().drafted_per_step();
            (if drafted.is_finite() { drafted } else { 0.0 }, row.speed() / plain)
        });
        Panel { titles: [target.to_owned(), text.to_owned()], ours: curve(true), theirs: curve(false), chosen }
    }
}

/// A panel with its margins, and the area of its curves.
const PANEL: (f64, f64) = (330.0, 246.0);
const MARGIN: (f64, f64) = (40.0, 52.0);
const AREA: (f64, f64) = (PANEL.0 - MARGIN.0 - 14.0, PANEL.1 - MARGIN.1 - 40.0);
const COLUMNS: usize = 3;
const LEGEND: f64 = 44.0;
/// Colours with enough contrast on white and on dark grey. The shapes differ, too.
const STYLE: &str = "\
text{font:12px system-ui,sans-serif;fill:#24292f}.title{font-weight:600}.small{font-size:11px;fill:#57606a}\
.grid{stroke:#d0d7de;stroke-width:1}.one{stroke:#8c959f;stroke-width:1;stroke-dasharray:3 3}\
.ours{stroke:#0969da;fill:none;stroke-width:2}.theirs{stroke:#bc4c00;fill:none;stroke-width:2;stroke-dasharray:6 3}\
.ourdot{fill:#0969da}.theirdot{fill:#bc4c00}.chosen{fill:#1a7f37;stroke:none}.level{stroke:#1a7f37;stroke-width:1;stroke-dasharray:1 3}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}.grid{stroke:#30363d}.one{stroke:#6e7681}\
.ours{stroke:#4493f8}.ourdot{fill:#4493f8}.theirs{stroke:#f0883e}.theirdot{fill:#f0883e}.chosen{fill:#3fb950}.level{stroke:#3fb950}}";

/// The whole picture.
pub fn svg(panels: &[Panel]) -> String {
    let columns = panels.len().clamp(1, COLUMNS);
    let rows = panels.len().div_ceil(columns);
    let (width, height) = (columns as f64 * PANEL.0, LEGEND + rows as f64 * PANEL.1);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         role=\"img\"><title>Speed-up over plain decoding, by draft length</title><style>{STYLE}</style>\n"
    );
    legend(&mut svg);
    for (index, panel) in panels.iter().enumerate() {
        let (x, y) = ((index % columns) as f64 * PANEL.0, LEGEND + (index / columns) as f64 * PANEL.1);
        let _ = writeln!(svg, "<g transform=\"translate({x:.0} {y:.0})\">");
        draw(&mut svg, panel);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

fn legend(svg: &mut String) {
    let mut at = 16.0;
    for (class, dot, label) in [
        ("ours", "ourdot", "speed-up at a fixed draft length"),
        ("theirs", "theirdot", "llama.cpp's"),
        ("", "chosen", "adaptive, at its mean length"),
    ] {
        if !class.is_empty() {
            let _ = write!(svg, "<path class=\"{class}\" d=\"M{at} 20h28\"/>");
        }
        let _ = write!(svg, "{}<text x=\"{}\" y=\"24\">{label}</text>", marker(dot, at + 14.0, 20.0), at + 36.0);
        at += 60.0 + 6.6 * label.len() as f64;
    }
    svg.push('\n');
}

/// A dot for this library, a square for llama.cpp, a diamond for the controller.
fn marker(class: &str, x: f64, y: f64) -> String {
    match class {
        "chosen" => format!("<path class=\"chosen\" d=\"M{x:.1} {:.1}l6.5 6.5 -6.5 6.5 -6.5 -6.5z\"/>", y - 6.5),
        "theirdot" => {
            format!("<rect class=\"theirdot\" x=\"{:.1}\" y=\"{:.1}\" width=\"6\" height=\"6\"/>", x - 3.0, y - 3.0)
        }
        _ => format!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.2\"/>"),
    }
}

fn draw(svg: &mut String, panel: &Panel) {
    let points = || panel.ours.iter().chain(&panel.theirs).chain(&panel.chosen);
    let most = points().map(|point| point.1).filter(|y| y.is_finite()).fold(1.0, f64::max);
    let longest = points().map(|point| point.0).fold(1.0, f64::max);
    let step = [0.25, 0.5, 1.0, 2.0, 5.0].into_iter().find(|step| most / step <= 5.0).unwrap_or(10.0);
    let top = (most / step).ceil() * step;
    let x = |n: f64| MARGIN.0 + AREA.0 * n / longest;
    let y = |speed_up: f64| MARGIN.1 + AREA.1 * (1.0 - speed_up / top);

    let [target, text] = panel.titles.each_ref().map(|title| escaped(title));
    let _ = writeln!(
        svg,
        "<text class=\"title\" x=\"16\" y=\"18\">{text}</text><text class=\"small\" x=\"16\" y=\"34\">{target}</text>"
    );
    let mut line = 0.0;
    while line <= top + 1e-9 {
        let at = y(line);
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{} {at:.1}h{:.0}\"/><text class=\"small\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{line}</text>",
            MARGIN.0,
            AREA.0,
            MARGIN.0 - 6.0,
            at + 4.0
        );
        line += step;
    }
    let _ = write!(svg, "<path class=\"one\" d=\"M{} {:.1}h{:.0}\"/>", MARGIN.0, y(1.0), AREA.0);
    // Labels that would overlap the previous one are omitted.
    let mut free = f64::NEG_INFINITY;
    for (n, _) in &panel.ours {
        if x(*n) >= free {
            let below = MARGIN.1 + AREA.1 + 16.0;
            let _ = write!(
                svg,
                "<text class=\"small\" x=\"{:.1}\" y=\"{below:.1}\" text-anchor=\"middle\">{n}</text>",
                x(*n)
            );
            free = x(*n) + 16.0;
        }
    }
    let _ = writeln!(
        svg,
        "<text class=\"small\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">tokens drafted a step</text>",
        MARGIN.0 + AREA.0 / 2.0,
        MARGIN.1 + AREA.1 + 31.0
    );
    for (class, dot, points) in [("theirs", "theirdot", &panel.theirs), ("ours", "ourdot", &panel.ours)] {
        let path: Vec<String> = points.iter().map(|point| format!("{:.1} {:.1}", x(point.0), y(point.1))).collect();
        if !path.is_empty() {
            let _ = write!(svg, "<path class=\"{class}\" d=\"M{}\"/>", path.join("L"));
        }
        svg.extend(points.iter().map(|point| marker(dot, x(point.0), y(point.1))));
        svg.push('\n');
    }
    if let Some((n, speed_up)) = panel.chosen.filter(|point| point.1.is_finite()) {
        let _ = write!(svg, "<path class=\"level\" d=\"M{} {:.1}h{:.0}\"/>", MARGIN.0, y(speed_up), AREA.0);
        let _ = writeln!(svg, "{}", marker("chosen", x(n), y(speed_up)));
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
