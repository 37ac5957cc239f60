//! `cargo bench --bench speculation --features peer`: our speculation beside llama.cpp's own.
//!
//!     make bench                    the quick form: with the other benchmarks ten minutes and more
//!     make bench-full               everything, for an hour or more
//!     cargo bench --bench speculation --features peer -- [options] [target.gguf draft.gguf]
//!
//! | option | meaning |
//! | --- | --- |
//! | `--quick` | fewer texts, lengths and tokens |
//! | `--texts story,edit` | only these |
//! | `--lengths 1,2,4` | fixed draft lengths, on both sides |
//! | `--n-predict`, `--prompts` | most tokens of a text, prompts of a kind |
//! | `--seeds`, `--repetitions` | texts sampled after a prompt, runs of each text (the fastest counts; where a difference is small, up to 20 comparisons each) |
//! | `--threads 1` | for target evaluations on both sides, and for our draft; all cores without it |
//! | `--no-draft`, `--no-ngram` | leave out a half |
//! | `--flash-attn off` | ours without flash attention |
//! | `--stock` | llama.cpp as it comes: draft on all threads, polling, flash attention; else what short tries find fastest |
//! | `--plot FILE` | where the plot of speed-up against draft length goes; `target/bench/speedup.svg` without it |
//!
//! Without models: the shipped pair, and SmolLM2 enlarged to 830 M parameters in Q8_0, with a near draft and a far one (without
//! `--quick` in Q4_K, too). Real models do five tasks (`benches/texts/tasks.rs`), the shipped ones texts like those they were trained on. Ours
//! goes through the C ABI as a host sees it, llama.cpp's through `benches/peer`. All ways take turns, so that a disturbance
//! of the machine hits all of them. No way may know a text from before: what learns from answers forgets them.
//! Above temperature 0 llama.cpp's side writes our text in place of what it samples, except by its rejection sampling.
//! After each text the plot and the summary so far (`target/bench/speculation.txt`) are written: who has seen enough can stop it.

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

/// The context of both sides: a file of 600 tokens and its edited copy fit.
const N_CTX: i32 = 2048;
/// Evaluations of one token that take longer than this make a target a slow one: fewer repetitions. And a very slow one.
const SLOW: f64 = 5e-3;
const VERY_SLOW: f64 = 40e-3;
const NO_PROMPTS: &str = "there are no prompts";
/// Tokens to try out llama.cpp's settings with.
const TRIED: usize = 32;
/// Comparisons for each repetition with fast targets: with plain decoding where nothing repeats, with the best fixed lengths, with
/// llama.cpp's best rules. A third of it for slow ones, a sixth in a hurry, one for very slow ones.
const COMPARED_PLAIN: usize = 20;
const COMPARED_FIXED: usize = 6;
const COMPARED_RULES: usize = 6;
/// So many fixed lengths, and so many of llama.cpp's rules, can be the best one.
const CANDIDATES: usize = 3;
const RIVALS: usize = 2;
/// Ours that draft from the text; the last two choose for themselves.
const OUR_NGRAMS: [&str; 7] =
    ["ngram-cache", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "suffix", "auto"];
/// llama.cpp's five rules.
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
            // Of how long a draft should be, few steps say little.
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

    /// How often to compare what is compared `most` times in each repetition with fast targets.
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

    /// The draft model's ways; of llama.cpp's second rule not all lengths for a slow target.
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

/// The ways that draft from the text itself. With a file of 2-grams (the benchmark `ngram` makes it), the n-gram caches
/// have that as their static one.
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

/// llama.cpp's side, with flash attention and without it.
///
/// Which is the faster depends on the model, and on how much is evaluated at once: each table takes what suits llama.cpp best.
struct Peers {
    loaded: Vec<(Settings, Models)>,
}

impl Peers {
    /// With the number of threads for the draft, and the polling, that a short try finds fastest for each; or as llama.cpp comes.
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
        // Our threads spin for a while.
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

    /// Those that are the fastest with the best of these requests, and what they are.
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

/// llama.cpp with its draft model.
fn draft_of(n_max: i32) -> Request {
    Request { kind: "draft-simple", n_max, ..Request::default() }
}

/// Tokens a second with the fastest of these requests, in a few tokens.
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
    // Comparisons with a slow target take longer than the quick form has.
    let in_a_hurry = slow && options.quick;
    // The controller knows the costs of these models before it counts.
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
            // Where nothing repeats, drafting from the text must at least cost nothing.
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
