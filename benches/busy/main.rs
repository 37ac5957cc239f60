//! `scripts/bench.sh busy`: tokens per second on a machine with other load.
//!
//!     scripts/bench.sh busy                  the shipped target
//!     scripts/bench.sh busy model.gguf       another model
//!     scripts/bench.sh busy --calls          the longest submit, poll and status of chats, instead of speeds
//!
//! Each figure comes from a separate process, next to 0, 1 or 2 processes that each keep a core busy, or restricted to one core. It
//! measures the library with default settings, the library with one thread, and llama.cpp's plain loop with as many threads as the
//! machine has cores (its default) and with one thread.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "benchmarks may panic, and they call C functions"
)]

#[path = "../engine/bare.rs"]
mod bare;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../examples/host/mod.rs"]
mod host;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use bare::Bare;
use common::{Args, median};
use host::{Host, Result};
use serde_json::{Value, json};

/// The time for a figure. The first quarter, in which the library adapts its number of threads, is not counted.
const TIME: Duration = Duration::from_secs(4);
const N_CTX: u32 = 2048;
/// The number of tokens of each completion.
const N_PREDICT: usize = 16;
/// The number of chats whose calls are timed.
const N_CHATS: usize = 20;
const PROMPT: &str = "Once upon a time there was a child who";

fn main() -> ExitCode {
    common::exit(run())
}

fn run() -> Result<()> {
    let mut args = Args::new();
    if args.flag("spin") {
        spin();
    }
    let times_calls = args.flag("calls");
    let pin: Option<String> = args.value("pin")?;
    let (ours, llama) = (args.value::<i64>("ours")?, args.value::<i32>("llama")?);
    let model = args.rest()?.first().map_or_else(|| host::root().join("models/stories-target.gguf"), PathBuf::from);
    if times_calls {
        return compare_calls(&model);
    }
    let pin = pin.as_deref();
    match (ours, llama) {
        (Some(n_threads), _) => println!("{}", measure_ours(&model, n_threads, pin)?),
        (None, Some(n_threads)) => println!("{}", measure_llama(&model, n_threads, pin)?),
        (None, None) => compare(&model)?,
    }
    Ok(())
}

/// Prints a table with all figures of a model.
fn compare(model: &Path) -> Result<()> {
    let cores = i64::try_from(std::thread::available_parallelism()?.get())?;
    println!("{}, {} cores: tokens a second\n", model.display(), cores);
    println!("| beside | default | threads at the end | 1 thread | llama.cpp, {cores} | llama.cpp, 1 |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for (name, n_busy, pin) in [
        ("nothing", 0, None),
        ("1 busy process", 1, None),
        ("2 busy processes", 2, None),
        ("nothing, on one core from the start", 0, Some("before")),
        ("nothing, on one core after init", 0, Some("after")),
    ] {
        let _busy = (0..n_busy).map(|_| Busy::start()).collect::<Result<Vec<Busy>>>()?;
        let figure = |kind: &str, n_threads: i64| figure(model, kind, n_threads, pin);
        let default = figure("--ours", 0)?;
        let one = figure("--ours", 1)?;
        let llama = [figure("--llama", cores)?, figure("--llama", 1)?];
        println!(
            "| {name} | {:.1} | {} | {:.1} | {:.1} | {:.1} |",
            default.0, default.1, one.0, llama[0].0, llama[1].0
        );
    }
    Ok(())
}

/// Prints how long the calls of a host take that polls each millisecond while chats run.
fn compare_calls(model: &Path) -> Result<()> {
    let host = Host::open()?;
    host.start(&json!({"model": model, "n_ctx": N_CTX, "log_level": "error", "chat_template": "chatml"}))?;
    println!("{}: microseconds of {N_CHATS} chats, the median and the longest of each call\n", model.display());
    println!("| beside | submit | poll | status |");
    println!("| --- | --- | --- | --- |");
    for n_busy in 0..=2 {
        let _busy = (0..n_busy).map(|_| Busy::start()).collect::<Result<Vec<Busy>>>()?;
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..N_CHATS {
            chat(&host, &mut times)?;
        }
        let shown = times.map(|times| {
            let longest = times.iter().copied().fold(0.0, f64::max);
            format!("{:.0}, {longest:.0}", median(times))
        });
        println!("| {n_busy} busy processes | {} |", shown.join(" | "));
    }
    Ok(())
}

/// Runs a chat, and adds the times of its submit, polls and statuses in microseconds.
fn chat(host: &Host, times: &mut [Vec<f64>; 3]) -> Result<()> {
    let mut timed = |kind: usize, call: &dyn Fn() -> Result<Value>| {
        let start = Instant::now();
        let answer = call();
        times[kind].push(start.elapsed().as_secs_f64() * 1e6);
        answer
    };
    let request = json!({"messages": [{"role": "user", "content": PROMPT}], "n_predict": 60, "ignore_eos": true});
    let id = timed(0, &|| host.call("async_completion_init", &request))?["id"].clone();
    loop {
        let answer = timed(1, &|| host.call("async_completion_poll", &json!({"id": id})))?;
        if answer["finished"] == true {
            return Ok(());
        }
        timed(2, &|| host.status())?;
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs a process. Returns its tokens per second, and its number of threads at the end.
fn figure(model: &Path, kind: &str, n_threads: i64, pin: Option<&str>) -> Result<(f64, u64)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([kind, &n_threads.to_string()]).arg(model).stderr(Stdio::null());
    if let Some(when) = pin {
        command.args(["--pin", when]);
    }
    let output = command.output()?;
    let text = String::from_utf8(output.stdout)?;
    let mut words = text.split_whitespace();
    let mut next = || words.next().ok_or_else(|| format!("{kind} {n_threads}: no figure"));
    Ok((next()?.parse()?, next()?.parse()?))
}

/// Measures the library with this number of threads. 0: its default.
fn measure_ours(model: &Path, n_threads: i64, pin: Option<&str>) -> Result<String> {
    pin_if(pin == Some("before"))?;
    let host = Host::open()?;
    let mut config = json!({"model": model, "n_ctx": N_CTX, "log_level": "error"});
    if n_threads > 0 {
        config["n_threads"] = json!(n_threads);
    }
    host.start(&config)?;
    pin_if(pin == Some("after"))?;
    let request = json!({"prompt": PROMPT, "n_predict": N_PREDICT, "temperature": 0, "ignore_eos": true});
    let speed = speed(|| {
        let answer = host.call("get_completion", &request)?;
        let ms = answer["timings"]["predicted_ms"].as_f64().unwrap_or_default();
        Ok((answer["timings"]["predicted_n"].as_f64().unwrap_or_default(), ms / 1e3))
    })?;
    Ok(format!("{speed} {}", host.status()?["n_threads_now"]))
}

/// Measures llama.cpp's plain loop.
fn measure_llama(model: &Path, n_threads: i32, pin: Option<&str>) -> Result<String> {
    pin_if(pin == Some("before"))?;
    let mut bare = Bare::load(model, N_CTX, n_threads)?;
    pin_if(pin == Some("after"))?;
    // If threads spin for each other on one core, a token takes seconds.
    let n = if pin.is_some() && n_threads > 1 { 2 } else { N_PREDICT };
    let speed = speed(|| {
        let (tokens, time) = bare.generate(&[1, 403, 7, 11], n)?;
        Ok((tokens.len().saturating_sub(1) as f64, time.as_secs_f64()))
    })?;
    Ok(format!("{speed} {n_threads}"))
}

/// The median speed of a function that generates tokens and returns the time.
fn speed(mut generate: impl FnMut() -> Result<(f64, f64)>) -> Result<f64> {
    let start = Instant::now();
    let mut speeds = Vec::new();
    while speeds.is_empty() || start.elapsed() < TIME {
        let (tokens, seconds) = generate()?;
        if start.elapsed() > TIME / 4 {
            speeds.push(tokens / seconds);
        }
    }
    Ok(median(speeds))
}

/// Restricts this process, with all its threads, to one core.
fn pin_if(pins: bool) -> Result<()> {
    if !pins {
        return Ok(());
    }
    for task in std::fs::read_dir("/proc/self/task")? {
        let id: i32 = task?.file_name().to_string_lossy().parse()?;
        // SAFETY: a zeroed set is valid, and the call reads exactly its size.
        let result = unsafe {
            let mut cores: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(0, &mut cores);
            libc::sched_setaffinity(id, size_of_val(&cores), &raw const cores)
        };
        if result != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
    }
    Ok(())
}

/// A process that keeps a core busy. Dropping it kills the process.
struct Busy(Child);

impl Busy {
    fn start() -> Result<Busy> {
        Ok(Busy(Command::new(std::env::current_exe()?).arg("--spin").spawn()?))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Computes until the process is killed or its parent has ended.
fn spin() -> ! {
    // SAFETY: requests a signal for when the parent ends.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let mut state = 1u64;
    loop {
        state = std::hint::black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}
