//! `cargo bench --bench ngram --features peer`: this library's n-gram caches compared with llama.cpp's.
//!
//! | option | meaning |
//! | --- | --- |
//! | `--quick` | each measurement once, instead of the best of three interleaved ones |
//!
//! Uses more than 5 million tokens of the shipped models' corpus. Times are CPU times (for saving: elapsed times), llama.cpp's are taken
//! in C++. Memory is the size of malloc's allocations.
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
#[path = "../peer/mod.rs"]
mod peer;
mod same;
#[path = "../texts/mod.rs"]
mod texts;

use std::hint::black_box;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use common::{Args, yes};
use foredraft::ngram::{Cache, CacheLevels, DraftedToken, Sizes, lookup_stats};
use host::{Host, Result, root};
use peer::{Caches, grown, timed};

/// The numbers of tokens in the static (and large) cache, in the dynamic cache, and in the drafted text. When lookups are timed, the context
/// cache contains the first half of the drafted text.
const LARGE: usize = 5_000_000;
const DYNAMIC: usize = 1_000_000;
const TEXT: usize = 40_000;
/// llama.cpp's maximum draft length, and the window of `llama-lookup-stats`.
const N_DRAFT: usize = 8;
const N_CTX: usize = 512;

fn main() -> ExitCode {
    common::exit(run())
}

fn run() -> Result<()> {
    let mut args = Args::new();
    let repetitions = if args.flag("quick") { 1 } else { 3 };
    args.rest()?;
    println!("{}", common::machine());
    let host = Host::open()?;
    host.load(&root().join("models/stories-target.gguf"), &root().join("models/stories-draft.gguf"))?;
    let corpus = texts::corpus::tokens(&host)?;
    drop(host);
    let mut rest = corpus.as_slice();
    let mut take = |n: usize| {
        let part = rest.split_off(..n);
        part.ok_or_else(|| format!("the corpus has only {} tokens", corpus.len()))
    };
    let (large, dynamic, text) = (take(LARGE)?, take(DYNAMIC)?, take(TEXT)?);
    println!(
        "{} tokens: {LARGE} for the large caches, {DYNAMIC} for the dynamic one, {TEXT} to draft for\n",
        corpus.len()
    );
    println!("{:44}{:>14}{:>14}{:>9}   goal", "", "ours", "llama.cpp", "ratio");

    let sizes = Sizes::new(2, 2)?;
    large_caches(large, repetitions)?;
    learning(text, repetitions)?;
    let fixed = (update(large, sizes).0, their_update(large, 2..=2)?.0);
    let dynamic = (update(dynamic, Sizes::ALL).0, their_update(dynamic, 1..=4)?.0);
    drafting(fixed, dynamic, text, repetitions)
}

/// A line of the table: both measurements, and their ratio.
fn line(what: &str, ours: f64, theirs: f64, unit: (&str, f64), goal: Option<f64>) {
    let (unit, scale) = unit;
    let ratio = theirs / ours;
    let shown = |value: f64| format!("{:.*} {unit}", if value * scale < 10.0 { 2 } else { 1 }, value * scale);
    let goal = goal.map_or(String::new(), |goal| format!("   {goal} x: {}", yes(ratio >= goal)));
    println!("{what:44}{:>14}{:>14}{ratio:>7.1} x{goal}", shown(ours), shown(theirs));
}

const MS: (&str, f64) = ("ms", 1e3);
const US: (&str, f64) = ("us", 1e6);
const MB: (&str, f64) = ("MB", 1e-6);

/// The minimum.
#[derive(Clone, Copy)]
struct Best(f64);

impl Best {
    const NONE: Best = Best(f64::INFINITY);

    fn saw(&mut self, seconds: f64) {
        self.0 = self.0.min(seconds);
    }
}

/// The cache of a whole text, and the time in seconds.
fn update(tokens: &[i32], sizes: Sizes) -> (Cache, f64) {
    timed(|| {
        let mut cache = Cache::new();
        cache.update(tokens, tokens.len(), sizes);
        cache
    })
}

fn their_update(tokens: &[i32], sizes: std::ops::RangeInclusive<i32>) -> Result<(peer::Cache, f64)> {
    let mut cache = peer::Cache::new()?;
    let seconds = cache.update(tokens, sizes, 0)?;
    Ok((cache, seconds))
}

/// Creating, saving and loading the n-grams of 1 to 4 tokens of the large text.
fn large_caches(tokens: &[i32], repetitions: usize) -> Result<()> {
    let (mut ours, mut theirs) = (Best::NONE, Best::NONE);
    for _ in 0..repetitions {
        ours.saw(update(tokens, Sizes::new(2, 2)?).1);
        theirs.saw(their_update(tokens, 2..=2)?.1);
    }
    line("2-grams of 5 M tokens", ours.0, theirs.0, MS, Some(3.0));

    let (mut ours, mut theirs) = (Best::NONE, Best::NONE);
    let mut caches = None;
    for _ in 0..repetitions {
        drop(caches.take());
        let ((cache, seconds), bytes) = grown(|| update(tokens, Sizes::ALL));
        let (theirs_made, their_bytes) = grown(|| their_update(tokens, 1..=4));
        let (their_cache, their_seconds) = theirs_made?;
        ours.saw(seconds);
        theirs.saw(their_seconds);
        caches = Some((cache, bytes, their_cache, their_bytes));
    }
    let (cache, bytes, their_cache, their_bytes) = caches.ok_or("no repetition")?;
    line("1- to 4-grams of 5 M tokens", ours.0, theirs.0, MS, Some(3.0));
    line("memory then", bytes as f64, their_bytes as f64, MB, Some(5.0));

    let (path, their_path) = (common::folder()?.join("ours.bin"), common::folder()?.join("theirs.bin"));
    let (mut ours, mut theirs) = (Best::NONE, Best::NONE);
    for _ in 0..repetitions {
        let start = Instant::now();
        cache.save(&path)?;
        ours.saw(start.elapsed().as_secs_f64());
        theirs.saw(their_cache.save(&their_path)?);
    }
    line("saving them (ours ordered and synchronised)", ours.0, theirs.0, MS, None);
    let n_grams = (cache.len(), their_cache.len());
    drop((cache, their_cache));

    // Each side can read both files. The timed one is llama.cpp's.
    let (mut ours, mut theirs) = (Best::NONE, Best::NONE);
    let mut memory = (0, 0);
    for _ in 0..repetitions {
        let ((loaded, seconds), bytes) = grown(|| timed(|| Cache::load(&their_path, None)));
        black_box(&loaded?);
        ours.saw(seconds);
        let (loaded, their_bytes) = grown(|| peer::Cache::load(&their_path));
        theirs.saw(loaded?.1);
        memory = (bytes, their_bytes);
    }
    line("loading them", ours.0, theirs.0, MS, Some(5.0));
    line("memory then", memory.0 as f64, memory.1 as f64, MB, Some(5.0));
    println!("{:44}{:>14}{:>14}", "n-grams", n_grams.0, n_grams.1);
    println!("files: {}\n", files(&path, &their_path)?);
    for path in [path, their_path] {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// Whether both sides read both files with the same result.
fn files(ours: &Path, theirs: &Path) -> Result<String> {
    let bytes = |path: &Path| -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        Cache::load(path, None)?.write(&mut bytes)?;
        Ok(bytes)
    };
    let same = bytes(theirs)? == std::fs::read(ours)?;
    // llama.cpp reads our file and writes it again; we read the result.
    let again = theirs.with_extension("again.bin");
    peer::Cache::load(ours)?.0.save(&again)?;
    let back = bytes(&again)? == std::fs::read(ours)?;
    std::fs::remove_file(again)?;
    Ok(format!(
        "ours reads llama.cpp's to the same counts: {}; llama.cpp reads ours to the same counts: {}",
        yes(same),
        yes(back)
    ))
}

/// Adding tokens one by one, as the context cache does during generation.
fn learning(text: &[i32], repetitions: usize) -> Result<()> {
    let (mut ours, mut theirs) = (Best::NONE, Best::NONE);
    for _ in 0..repetitions {
        let (mut seconds, mut their_seconds) = (0.0, 0.0);
        // One cache for all windows, cleared in between, as for consecutive requests.
        let mut cache = Cache::new();
        for window in text.chunks(N_CTX) {
            cache.clear();
            seconds += timed(|| {
                for n in 1..=window.len() {
                    cache.update(window.get(..n).unwrap_or_default(), 1, Sizes::ALL);
                }
            })
            .1;
            their_seconds += peer::Cache::new()?.update(window, 1..=4, 1)?;
        }
        ours.saw(seconds);
        theirs.saw(their_seconds);
    }
    let n = text.len() as f64;
    line("one more token of a text of up to 512", ours.0 / n, theirs.0 / n, US, Some(3.0));
    Ok(())
}

/// Drafts from three caches: their cost, their equality, and the numbers of `llama-lookup-stats`.
fn drafting(
    fixed: (Cache, peer::Cache),
    dynamic: (Cache, peer::Cache),
    text: &[i32],
    repetitions: usize,
) -> Result<()> {
    let (known, _) = text.split_at(text.len() / 2);
    let mut context = Cache::new();
    context.update(known, known.len(), Sizes::ALL);
    let mut theirs = Caches { context: their_update(known, 1..=4)?.0, dynamic: dynamic.1, fixed: fixed.1 };
    for n_draft in [1, N_DRAFT] {
        let (mut best, mut their_best) = (Best::NONE, Best::NONE);
        let mut drafted = 0;
        for _ in 0..repetitions.max(2) {
            let levels =
                CacheLevels { context: &context, dynamic: &dynamic.0, static_cache: &fixed.0, sizes: Sizes::ALL };
            let mut drafts = vec![-1; (text.len() - known.len()) * n_draft];
            let mut draft: Vec<DraftedToken> = Vec::new();
            let ((), seconds) = timed(|| {
                for (at, place) in (known.len()..text.len()).zip(drafts.chunks_mut(n_draft)) {
                    levels.draft(text.get(..at).unwrap_or_default(), n_draft, &mut draft);
                    place.iter_mut().zip(&draft).for_each(|(place, drafted)| *place = drafted.token);
                }
            });
            let (_, their_seconds) = theirs.drafts(text, known.len(), n_draft, false)?;
            drafted = drafts.iter().filter(|token| **token >= 0).count();
            best.saw(seconds);
            their_best.saw(their_seconds);
        }
        let n = (text.len() - known.len()) as f64;
        line(&format!("a draft of up to {n_draft}"), best.0 / n, their_best.0 / n, US, Some(15.0));
        if n_draft > 1 {
            // Includes the lookup without result that ends a draft of less than the maximum length.
            let looks = drafted as f64 + n;
            line("   for each token of it", best.0 / looks, their_best.0 / looks, US, Some(15.0));
        }
    }

    println!("\n{}\n", same::compare(&mut theirs, (&dynamic.0, &fixed.0), text)?);
    let (mut dynamic, fixed) = (dynamic.0, fixed.0);
    let stats = lookup_stats(text, N_DRAFT, N_CTX, &mut dynamic, &fixed, &mut |_| ControlFlow::Continue(()))?;
    let their_stats = theirs.stats(text, N_CTX, N_DRAFT)?;
    let all = stats.all();
    println!("llama-lookup-stats{:>32}{:>14}", "ours", "llama.cpp");
    for (name, ours, theirs) in [
        ("n_predict", stats.n_predict as u64, their_stats.n_predict),
        ("n_drafted", all.drafted as u64, their_stats.n_drafted),
        ("n_accept", all.accepted as u64, their_stats.n_accept),
    ] {
        println!("{name:36}{ours:>14}{theirs:>14}   {}", if ours == theirs { "the same" } else { "" });
    }
    let shares = (
        all.accepted as f64 / all.drafted.max(1) as f64,
        their_stats.n_accept as f64 / their_stats.n_drafted.max(1) as f64,
    );
    println!("{:36}{:>12.2} %{:>12.2} %", "accept", 1e2 * shares.0, 1e2 * shares.1);
    Ok(())
}
