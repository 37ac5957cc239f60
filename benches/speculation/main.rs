//! `cargo bench --bench speculation --features peer`: this library's speculation compared with llama.cpp's.
//!
//!     make bench                    the quick form: ten minutes or more with the other benchmarks
//!     scripts/bench.sh full         everything: an hour or more
//!     cargo bench --bench speculation --features peer -- [options] [target.gguf draft.gguf]
//!
//! | option | meaning |
//! | --- | --- |
//! | `--quick` | fewer texts, lengths and tokens |
//! | `--texts story,edit` | only these |
//! | `--lengths 1,2,4` | fixed draft lengths, on both sides |
//! | `--n-predict`, `--prompts` | the maximum number of tokens of a text, the number of prompts of a kind |
//! | `--seeds`, `--repetitions` | the number of texts sampled for a prompt, of runs of each text (the fastest counts; for small differences, up to 20 comparisons each) |
//! | `--threads 1` | the number of threads of target decodes on both sides, and of our draft; default: all cores |
//! | `--no-draft`, `--no-ngram` | skip the draft model, or the history drafters |
//! | `--flash-attn off` | this library without flash attention |
//! | `--stock` | llama.cpp's defaults: draft on all threads, polling, flash attention; otherwise the settings that are fastest in short trials |
//! | `--plot FILE` | the file for the plot of speed-up against draft length; default `target/bench/speedup.svg` |
//!
//! Without models: the shipped pair, and SmolLM2 enlarged to 830 M parameters in Q8_0 with a near and a far draft (without `--quick` also in
//! Q4_K). Real models do five tasks (`benches/texts/tasks.rs`); the shipped models continue texts like their training data. This library is
//! called through the C ABI like by a host, llama.cpp through `benches/peer`. All configurations are interleaved, so that other load affects
//! all of them. Caches of previous completions are cleared before each text. Above temperature 0, llama.cpp's side generates our
//! text instead of its samples, except with rejection sampling. The plot and the summary (`target/bench/speculation.txt`) are written after
//! each text, so the benchmark can be stopped early.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "benchmarks may panic, and they call C functions"
)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../../examples/host/mod.rs"]
mod host;
mod pairs;
#[path = "../peer/mod.rs"]
mod peer;
mod plot;
mod report;
#[path = "../texts/mod.rs"]
mod texts;
mod ways;

use std::path::PathBuf;
use std::process::ExitCode;

use common::Args;
use host::{Host, Pair, Result};
use peer::{Models, Request, Settings};
use plot::Panel;
use report::{Limits, Summary};
use serde_json::json;
use ways::{Amount, Kind, Role, Sides, Task, Way};

/// The context length of both sides: large enough for a file of 600 tokens and its edited copy.
const N_CTX: i32 = 2048;
/// If decoding one token takes longer than this, the target is slow (or very slow), and there are fewer repetitions.
const SLOW: f64 = 5e-3;
const VERY_SLOW: f64 = 40e-3;
const NO_PROMPTS: &str = "there are no prompts";
/// The number of tokens for trials of llama.cpp's settings.
const TRIED: usize = 32;
/// The number of comparisons per repetition with fast targets: with plain decoding of texts without repetitions, with the best fixed
/// lengths, and with llama.cpp's best rules. Slow targets have a third, slow targets with `--quick` a sixth, very slow targets one.
const COMPARED_PLAIN: usize = 20;
const COMPARED_FIXED: usize = 6;
const COMPARED_RULES: usize = 6;
/// The maximum number of fixed lengths, and of llama.cpp's rules, that are candidates for the best one.
const CANDIDATES: usize = 3;
const RIVALS: usize = 2;
/// This library's history drafters, and `auto`.
const OUR_NGRAMS: [&str; 3] = ["ngram-cache", "suffix", "auto"];
/// llama.cpp's five history drafters.
const THEIR_NGRAMS: [&str; 5] = ["ngram-cache", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod"];

struct Options {
    quick: bool,
    texts: Option<Vec<String>>,
    lengths: Vec<usize>,
    n_predict: Option<usize>,
    prompts: Option<usize>,
    seeds: Option<usize>,
    repetitions: Option<usize>,
    threads: i32,
    draft: bool,
    ngram: bool,
    stock: bool,
    flash_attn: String,
    plot: PathBuf,
    models: Vec<String>,
}

impl Options {
    fn read() -> Result<Options> {
        let mut args = Args::new();
        let quick = args.flag("quick");
        let lengths: &[usize] = if quick { &[1, 3, 7] } else { &[1, 2, 3, 4, 6, 8, 12, 16] };
        Ok(Options {
            quick,
            texts: args.values("texts")?,
            lengths: args.values("lengths")?.unwrap_or(lengths.to_vec()),
            n_predict: args.value("n-predict")?,
            prompts: args.value("prompts")?,
            seeds: args.value("seeds")?,
            repetitions: args.value("repetitions")?,
            threads: args.value("threads")?.unwrap_or(i32::try_from(std::thread::available_parallelism()?.get())?),
            draft: !args.flag("no-draft"),
            ngram: !args.flag("no-ngram"),
            stock: args.flag("stock"),
            flash_attn: args.value("flash-attn")?.unwrap_or("auto".into()),
            plot: args.value("plot")?.unwrap_or(common::folder()?.join("speedup.svg")),
            models: args.rest()?,
        })
    }

    /// `one`: seconds for one token.
    fn amount(&self, one: f64) -> Amount {
        let (n_predict, prompts, seeds, repetitions) = match (self.quick, one) {
            (true, SLOW..) => (24, 1, 1, 1),
            (true, _) => (80, 2, 1, 3),
            // A few steps are not enough to determine the best draft length.
            (false, VERY_SLOW..) => (160, 1, 1, 1),
            (false, SLOW..) => (160, 1, 1, 2),
            (false, _) => (96, 3, 2, 5),
        };
        Amount {
            n_predict: self.n_predict.unwrap_or(n_predict),
            prompts: self.prompts.unwrap_or(prompts),
            seeds: self.seeds.unwrap_or(seeds),
            repetitions: self.repetitions.unwrap_or(repetitions),
        }
    }

    /// The number of comparisons, where fast targets have `most` per repetition.
    fn compared(&self, most: usize, amount: Amount, one: f64) -> usize {
        let each = match (self.quick, one) {
            (_, VERY_SLOW..) => 1,
            (true, _) => most.div_ceil(6),
            (false, SLOW..) => most.div_ceil(3),
            (false, _) => most,
        };
        each * amount.repetitions
    }

    fn wants(&self, text: &str, slow: bool) -> bool {
        let quick: &[&str] = if slow { &["question", "edit"] } else { &["story", "json", "noise", "rewrite", "code"] };
        match &self.texts {
            Some(texts) => texts.iter().any(|name| name == text),
            None => !self.quick || quick.contains(&text),
        }
    }

    /// The configurations with a draft model. A slow target has fewer lengths of llama.cpp's second rule.
    fn drafting(&self, temperature: f64, slow: bool) -> Vec<Way> {
        let fixed = |n_max: usize| {
            let speculative = json!({"type": "draft", "adaptive": false, "n_max": n_max});
            Way::ours(format!("n_max {n_max}"), Role::Fixed { ours: true, n_max }, speculative)
        };
        let theirs = |n_max: usize, probabilistic: bool| {
            let request = Request {
                kind: "draft-simple",
                n_max: i32::try_from(n_max).unwrap_or(0),
                probabilistic,
                ..Request::default()
            };
            let name = if probabilistic { ", rejection" } else { "" };
            Way::theirs(format!("llama.cpp n_max {n_max}{name}"), Role::Fixed { ours: false, n_max }, request)
        };
        let mut ways = plain();
        ways.push(adaptive());
        ways.extend(self.lengths.iter().map(|n| fixed(*n)));
        if temperature > 0.0 {
            for verify in ["match", "rejection", "block"] {
                let role = if verify == "match" { Role::Match { n_max: 3 } } else { Role::Verify };
                let speculative = json!({"type": "draft", "adaptive": false, "n_max": 3, "verify": verify});
                ways.push(Way::ours(format!("n_max 3, {verify}"), role, speculative));
            }
        }
        ways.extend(self.lengths.iter().map(|n| theirs(*n, false)));
        if temperature > 0.0 {
            let few = |n: &&usize| if self.quick { **n == 3 } else { !slow || [2, 3, 6, 12].contains(*n) };
            ways.extend(self.lengths.iter().filter(few).map(|n| theirs(*n, true)));
        }
        ways
    }
}

fn adaptive() -> Way {
    Way::ours("adaptive", Role::Adaptive, json!({"type": "draft", "adaptive": true}))
}

fn our_plain() -> Way {
    Way::ours("plain", Role::Plain { ours: true }, json!(false))
}

fn plain() -> Vec<Way> {
    vec![our_plain(), Way::theirs("llama.cpp plain", Role::Plain { ours: false }, Request::default())]
}

/// The configurations with history drafters. If the benchmark `ngram` has written the file of 2-grams, it is the static n-gram cache.
fn from_the_text() -> Result<Vec<Way>> {
    let mut ways = plain();
    let role = |ours: bool, kind: Kind| Role::Ngram { ours, kind };
    for name in OUR_NGRAMS {
        let kind = if ["suffix", "auto"].contains(&name) { Kind::General } else { Kind::Rule };
        ways.push(Way::ours(name, role(true, kind), json!({ "type": name })));
    }
    for kind in THEIR_NGRAMS {
        let request = Request { kind, ..Request::default() };
        ways.push(Way::theirs(format!("llama.cpp {kind}"), role(false, Kind::Rule), request));
    }
    let lookup = common::folder()?.join("static.bin");
    if lookup.is_file() {
        let speculative = json!({"type": "ngram-cache", "lookup_cache_static": lookup});
        ways.push(Way::ours("ngram-cache, static", role(true, Kind::Static), speculative));
        let request = Request { kind: "ngram-cache", lookup_static: Some(lookup), ..Request::default() };
        ways.push(Way::theirs("llama.cpp ngram-cache, static", role(false, Kind::Static), request));
    }
    Ok(ways)
}

fn main() -> ExitCode {
    common::exit(run())
}

fn run() -> Result<()> {
    let options = Options::read()?;
    println!("{}\n", common::machine());
    let host = Host::open()?;
    let (mut summary, mut panels) = (Summary::default(), Vec::new());
    for pair in common::pairs(&options.models, !options.quick) {
        measure(&host, &pair, &options, &mut summary, &mut panels)?;
    }
    println!("{}", summary.text());
    if !panels.is_empty() {
        println!("plot: {}", options.plot.display());
    }
    Ok(())
}

/// llama.cpp's side, with and without flash attention.
///
/// Which one is faster depends on the model and on the size of the batch. Each table uses the faster one.
struct Peers {
    loaded: Vec<(Settings, Models)>,
}

impl Peers {
    /// Loads with the number of draft threads and the polling level that are fastest in a short trial, or with llama.cpp's defaults.
    fn load(pair: &Pair, options: &Options, prompt: &[i32]) -> Result<Peers> {
        let n_threads = options.threads;
        let with = |flash_attn: bool, n_threads_draft: i32, poll: i32| Settings {
            n_ctx: N_CTX,
            n_threads,
            n_threads_draft,
            poll,
            flash_attn,
        };
        let kinds: Vec<Vec<Settings>> = if options.stock {
            vec![vec![with(true, n_threads, 50)]]
        } else {
            [true, false]
                .map(|flash| [(n_threads, 50), (1, 50), (1, 0)].map(|(t, poll)| with(flash, t, poll)).into())
                .into()
        };
        // Waits until our idle threads have stopped spinning.
        std::thread::sleep(common::SPINNING);
        let mut loaded = Vec::new();
        for settings in kinds {
            let mut best: Option<(f64, Settings, Models)> = None;
            for settings in settings {
                let mut models = Models::load(&pair.target, Some(&pair.draft), settings)?;
                let speed = try_out(&mut models, prompt, &[draft_of(3)], 3)?;
                if best.as_ref().is_none_or(|best| best.0 < speed) {
                    best = Some((speed, settings, models));
                }
            }
            let (_, settings, models) = best.ok_or("no settings")?;
            loaded.push((settings, models));
        }
        Ok(Peers { loaded })
    }

    /// The fastest settings for the best of these requests, with a description.
    fn best(&mut self, prompt: &[i32], requests: &[Request]) -> Result<(&mut Models, String)> {
        let mut best: Option<(f64, &mut Settings, &mut Models)> = None;
        for (settings, models) in &mut self.loaded {
            let speed = try_out(models, prompt, requests, 1)?;
            if best.as_ref().is_none_or(|best| best.0 < speed) {
                best = Some((speed, settings, models));
            }
        }
        let (_, settings, models) = best.ok_or("no settings")?;
        let Settings { n_threads, n_threads_draft, poll, flash_attn, .. } = *settings;
        let attention = if flash_attn { "flash attention" } else { "no flash attention" };
        let text = format!("llama.cpp: {n_threads} threads, {n_threads_draft} for the draft, poll {poll}, {attention}");
        Ok((models, text))
    }
}

/// llama.cpp with a draft model.
fn draft_of(n_max: i32) -> Request {
    Request { kind: "draft-simple", n_max, ..Request::default() }
}

/// Tokens per second of the fastest of these requests, measured with a few tokens.
fn try_out(models: &mut Models, prompt: &[i32], requests: &[Request], repetitions: usize) -> Result<f64> {
    let mut speed: f64 = 0.0;
    for request in requests {
        for _ in 0..repetitions {
            let request = Request { n_predict: TRIED, ignore_eos: true, ..request.clone() };
            let (_, outcome) = models.generate(prompt, &request)?;
            speed = speed.max(outcome.n_tokens as f64 / outcome.seconds);
        }
    }
    Ok(speed)
}

/// All texts with one pair of models.
fn measure(host: &Host, pair: &Pair, options: &Options, summary: &mut Summary, panels: &mut Vec<Panel>) -> Result<()> {
    let name = pair.target.file_stem().filter(|_| host::given_pair(&options.models).is_some());
    let name = name.map_or(pair.name.into(), |stem| stem.to_string_lossy().into_owned());
    println!("## {name} ({})\n", pair.about);
    let n_threads = options.threads;
    let config = json!({"model": pair.target, "model_draft": pair.draft, "n_ctx": N_CTX, "n_threads": n_threads, "flash_attn": options.flash_attn});
    host.start(&config)?;
    let texts = texts::texts(host)?;
    let warm_up = texts.first().ok_or("there are no texts")?;
    let prompts = warm_up.ids(1, host)?;
    let first = &prompts.first().ok_or(NO_PROMPTS)?.clone();
    let mut peers = Peers::load(pair, options, first)?;
    let (models, settings) = peers.best(first, &[draft_of(3)])?;
    let limits = Limits::measure(models, &options.lengths)?;
    println!("{settings}\n{}", limits.text());
    let (slow, amount) = (limits.one > SLOW, options.amount(limits.one));
    // Comparisons with a slow target take too long for the quick form.
    let in_a_hurry = slow && options.quick;
    // The controller has measured the costs of these models before timing begins.
    let once = Amount { repetitions: 1, ..amount };
    let task = Task { text: warm_up, prompts, temperature: 0.0, amount: once };
    Sides::new(host, models).measure(&task, &[adaptive()])?;
    for text in texts.iter().filter(|text| options.wants(text.name, slow)) {
        let temperatures = text.temperatures.iter().filter(|t| **t == 0.0 || !options.quick || !text.repetitive);
        for &temperature in temperatures {
            let task = Task { text, prompts: text.ids(amount.prompts, host)?, temperature, amount };
            let title = format!("{} at temperature {temperature}", text.name);
            if options.draft && text.from_draft {
                let ways = options.drafting(temperature, slow);
                let (models, settings) =
                    peers.best(task.prompts.first().ok_or(NO_PROMPTS)?, &[draft_of(1), draft_of(3), draft_of(8)])?;
                let mut sides = Sides::new(host, models);
                let rows = sides.measure(&task, &ways)?;
                println!("{settings}");
                println!("{}", report::table(&title, &ways, &rows, &limits, temperature == 0.0));
                let adaptive = adaptive();
                let fixed = if in_a_hurry { Vec::new() } else { report::fastest_fixed(&ways, &rows, CANDIDATES) };
                let task = task.with_runs(options.compared(COMPARED_FIXED, amount, limits.one));
                let pairs = pairs::measure(&mut sides, &task, &adaptive, &fixed)?;
                println!("{}", pairs::table(&title, &adaptive, &pairs));
                summary.add_draft(&name, &title, &ways, &rows, &pairs, &limits);
                panels.push(Panel::of(&name, &title, &ways, &rows));
                std::fs::write(&options.plot, plot::svg(panels))?;
            }
            if options.ngram && text.repetitive {
                let ways = from_the_text()?;
                let rules = THEIR_NGRAMS.map(|kind| Request { kind, ..Request::default() });
                let (models, settings) = peers.best(task.prompts.first().ok_or(NO_PROMPTS)?, &rules)?;
                let mut sides = Sides::new(host, models);
                let rows = sides.measure(&task, &ways)?;
                println!("{settings}");
                let title_here = format!("{title}, from the text");
                println!("{}", report::table(&title_here, &ways, &rows, &limits, temperature == 0.0));
                let theirs = if in_a_hurry { Vec::new() } else { report::their_fastest(&ways, &rows, RIVALS) };
                let task = task.with_runs(options.compared(COMPARED_RULES, amount, limits.one));
                let general = ways.iter().filter(|way| matches!(way.role, Role::Ngram { kind: Kind::General, .. }));
                let mut compared = Vec::new();
                for way in general {
                    let pairs = pairs::measure(&mut sides, &task, way, &theirs)?;
                    println!("{}", pairs::table(&title_here, way, &pairs));
                    compared.push((way, pairs));
                }
                summary.add_ngram(&name, &title, &ways, &rows, &compared);
            }
            // If a text has no repetitions, history drafters must not cost anything.
            if options.ngram && text.name == "noise" && !slow {
                let (plain, ways) = (our_plain(), from_the_text()?);
                let ours: Vec<_> = ways.iter().filter(|way| way.is_ours() && way.name != plain.name).collect();
                let task = task.with_runs(options.compared(COMPARED_PLAIN, amount, limits.one));
                let (models, _) = peers.best(first, &[draft_of(3)])?;
                let pairs = pairs::measure(&mut Sides::new(host, models), &task, &plain, &ours)?;
                println!("{}", pairs::table(&format!("{title}, from the text"), &plain, &pairs));
                summary.add_pairs(&name, &title, &pairs);
            }
            std::fs::write(common::folder()?.join("speculation.txt"), summary.text())?;
        }
    }
    Ok(())
}
