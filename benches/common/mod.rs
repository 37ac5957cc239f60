//! Shared by the benchmarks: options, medians, the machine, the models.
#![allow(dead_code)] // each benchmark uses a part

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use super::host::{self, Pair, Result};

/// The arguments after `cargo bench --`.
pub struct Args(Vec<String>);

impl Args {
    /// The arguments of this program, without cargo's `--bench`.
    pub fn new() -> Args {
        Args(std::env::args().skip(1).filter(|arg| arg != "--bench").collect())
    }

    /// Whether `--name` was given.
    pub fn flag(&mut self, name: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|arg| arg.strip_prefix("--") != Some(name));
        self.0.len() < before
    }

    /// The value after `--name`.
    pub fn value<T: FromStr>(&mut self, name: &str) -> Result<Option<T>> {
        let Some(at) = self.0.iter().position(|arg| arg.strip_prefix("--") == Some(name)) else { return Ok(None) };
        if at + 1 >= self.0.len() {
            return Err(format!("--{name} wants a value").into());
        }
        let text = self.0.drain(at..at + 2).next_back().unwrap_or_default();
        text.parse().map(Some).map_err(|_| format!("--{name} {text}: not a value for this option").into())
    }

    /// The values after `--name`, separated by commas.
    pub fn values<T: FromStr>(&mut self, name: &str) -> Result<Option<Vec<T>>> {
        let Some(list) = self.value::<String>(name)? else { return Ok(None) };
        let values: std::result::Result<Vec<T>, _> = list.split(',').map(str::parse).collect();
        values.map(Some).map_err(|_| format!("--{name} {list}: not values for this option").into())
    }

    /// The remaining arguments. An unknown option is an error.
    pub fn rest(self) -> Result<Vec<String>> {
        match self.0.iter().find(|arg| arg.starts_with("--")) {
            Some(arg) => Err(format!("{arg}: no such option").into()),
            None => Ok(self.0),
        }
    }
}

/// Prints an error and returns the exit code.
pub fn exit(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The maximum time that idle threads of a pool spin before they sleep.
pub const SPINNING: Duration = Duration::from_millis(1000);

/// The median; of an even number the mean of the middle two.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
    (at(values.len() / 2) + at(values.len().saturating_sub(1) / 2)) / 2.0
}

/// `yes` or `NO`.
pub fn yes(holds: bool) -> &'static str {
    if holds { "yes" } else { "NO" }
}

/// The processor, the number of usable cores, and their load, as far as known.
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name));
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_once(' ').map_or(String::new(), |(load, _)| format!(", load {load} at the start"));
    format!("{}, {cores} cores{load}", name.unwrap_or(std::env::consts::ARCH))
}

/// The folder for files that benchmarks create and keep.
pub fn folder() -> Result<PathBuf> {
    let folder = host::root().join("target/bench");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// The pair named by the arguments. Without arguments: the shipped pair, and the enlarged SmolLM2 in Q8_0 with both drafts; with `all`
/// also in Q4_K. Models that are not in `target/models` are skipped with a message on stderr.
pub fn pairs(args: &[String], all: bool) -> Vec<Pair> {
    if let Some(pair) = host::given_pair(args) {
        return vec![pair];
    }
    let mut pairs = vec![host::shipped_pair()];
    for kind in if all { &["Q8_0", "Q4_K"][..] } else { &["Q8_0"] } {
        let real = host::real_pairs(kind);
        if real.is_empty() {
            eprintln!("bench: no enlarged SmolLM2 in {kind}: `make models ARGS=--enlarged` makes it");
        }
        pairs.extend(real);
    }
    pairs
}
