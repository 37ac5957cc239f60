//! The log of a request's end at the debug level, in the form of llama.cpp's `speculative.cpp`: counts, and the timings of both models.

use std::time::Duration;

use super::event::Outcome;
use foredraft_llama::log::{self, Level};

/// Logs the end of the request `id`.
pub(super) fn log_end(id: u64, outcome: &Outcome) {
    if outcome.slot.is_none() && outcome.n_predicted == 0 || !log::is_enabled(Level::Debug) {
        return;
    }
    let write = |line: String| log::write(Level::Debug, &format!("request {id}: {line}"));
    let Outcome { timings, prompt, n_predicted, .. } = outcome;
    let speed = |n: usize, time: Duration| if time.is_zero() { 0.0 } else { n as f64 / time.as_secs_f64() };
    for (what, n, time) in [("encoded", prompt.n_prompt, timings.prompt), ("decoded", *n_predicted, timings.predicted)]
    {
        let (seconds, speed) = (time.as_secs_f64(), speed(n, time));
        write(format!("{what} {n:4} tokens in {seconds:8.3} seconds, speed: {speed:8.3} t/s"));
    }
    let per = |time: Duration, n: usize, what: &str| {
        let ms = 1e3 * time.as_secs_f64();
        let each = if n == 0 { 0.0 } else { ms / n as f64 };
        format!("{ms:.2} ms / {n} {what} ({each:.2} ms per {})", what.trim_end_matches('s'))
    };
    let mut evaluated = per(timings.predicted, n_predicted.saturating_sub(1), "runs");
    if let Some(stats) = &outcome.speculation {
        let accepted = 100.0 * stats.n_accepted as f64 / stats.n_drafted.max(1) as f64;
        write(format!("n_draft   = {}", stats.n_max_final));
        write(format!("n_predict = {n_predicted}"));
        write(format!("n_drafted = {}", stats.n_drafted));
        write(format!("n_accept  = {}", stats.n_accepted));
        write(format!("accept    = {accepted:.3}%"));
        write(format!("draft: eval time = {}", per(stats.t_draft, stats.n_drafted, "tokens")));
        evaluated = per(stats.t_verify, stats.n_steps.saturating_sub(1), "runs");
    }
    let total = 1e3 * (timings.prompt + timings.predicted).as_secs_f64();
    let prompt = per(timings.prompt, timings.prompt_n, "tokens");
    write(format!("target: prompt eval time = {prompt}; eval time = {evaluated}; total time = {total:.2} ms"));
}
