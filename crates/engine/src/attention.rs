//! Flash attention or not, whichever is faster on this machine at the depths that the engine will see.
//!
//! Where this library's kernel computes flash attention, there is nothing to choose. Otherwise the faster one is measured.
//!
//! Without flash attention, single tokens are padded (see `llama/context/padding.rs`), so that the choice is between decodes of one token
//! with it and of two tokens without. Attention grows with the depth, the rest of a decode does not: the rest is measured once with the
//! model, attention by itself at several depths, for a few layers (see [`llama::attention_cost`]). That takes milliseconds, where filling a
//! cache would take as long as reading prompts of that length.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::measure::measure;
use foredraft_base::error::Result;
use foredraft_llama as llama;
use foredraft_llama::{CacheType, Context, ContextParams, FlashAttn, Model, ThreadPool};

/// Cells of context at which attention is measured: a short one, and half of what the engine may hold, at most this.
const SHORT: usize = 256;
const LONG: usize = 2048;
/// Batches that count: one token, and as many as a short draft has with it.
const SIZES: [usize; 2] = [1, 4];
/// Flash attention is disabled where decodes without it take less than this fraction of the time.
const MARGIN: f64 = 0.9;
/// Measuring ends when it has taken so long; then flash attention stays as it was.
const MOST: Duration = Duration::from_millis(600);

/// The attention of a context, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionReport {
    /// Whether there is flash attention.
    pub flash_attn: bool,
    /// Whether this library's own kernel computes it instead of ggml's.
    pub own_kernel: bool,
    /// Type of the K cache.
    pub type_k: CacheType,
    /// Type of the V cache.
    pub type_v: CacheType,
    /// How it was chosen.
    pub chosen_by: ChosenBy,
    /// The costs of decodes, where they were measured.
    pub measured: Vec<AttentionCost>,
}

/// The cost of a decode at a depth.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionCost {
    /// Tokens in the context.
    pub depth: usize,
    /// Tokens in the batch.
    pub n_tokens: usize,
    /// Milliseconds with flash attention.
    pub on_ms: f64,
    /// Milliseconds without.
    pub off_ms: f64,
}

foredraft_base::words! {
    /// How the attention of a context was chosen.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ChosenBy {
        /// The load's `flash_attn`.
        Load => "load",
        /// A measurement: the faster one.
        Measurement => "measurement",
        /// There was no choice, or nothing was measured: llama.cpp's own choice, or an estimate by the processor and the model's heads.
        Default => "default",
    }
}

/// The measurements of this process, so that the same model gets the same attention again.
static KNOWN: LazyLock<Mutex<HashMap<Key, Vec<AttentionCost>>>> = LazyLock::new(Mutex::default);

/// A model's identity, threads, and the depth that counts.
type Key = (String, i32, usize);

/// Makes a context by `make` with the attention that is faster. `measures`: whether time may be spent to find out.
pub(super) fn with_best_attention(
    model: &Arc<Model>,
    params: &ContextParams,
    threads: &ThreadPool,
    measures: bool,
    make: impl Fn(&ContextParams) -> Result<Option<Context>>,
) -> Result<Option<(Context, AttentionReport)>> {
    let Some(mut context) = make(params)? else { return Ok(None) };
    let given = params.flash_attn != FlashAttn::Auto;
    let mut chosen_by = if given { ChosenBy::Load } else { ChosenBy::Default };
    let mut measured = Vec::new();
    // Our own kernel was faster at all depths on every machine so far. The two attentions round differently, so a choice by measurement,
    // which other programs disturb, could give another completion after a restart.
    if measures && !context.has_own_attention() && Context::has_choice_of_attention(params, model) {
        let long = context.n_ctx().min(LONG) / 2;
        let key = (format!("{:?}", model.identity()), params.n_threads, long);
        let known = KNOWN.lock().get(&key).cloned();
        let costs = known.or_else(|| costs(&mut context, model, params, threads, long.max(SHORT)));
        if let Some(costs) = costs {
            KNOWN.lock().insert(key, costs.clone());
            let flash = !is_better_without(&costs);
            if flash != context.has_flash_attention() {
                drop(context);
                let params = ContextParams { measured_flash_attn: Some(flash), ..params.clone() };
                let Some(other) = make(&params)? else { return Ok(None) };
                context = other;
            }
            chosen_by = ChosenBy::Measurement;
            measured = costs;
        }
    }
    let report = AttentionReport {
        flash_attn: context.has_flash_attention(),
        own_kernel: context.has_own_attention(),
        type_k: params.type_k,
        type_v: params.type_v,
        chosen_by,
        measured,
    };
    Ok(Some((context, report)))
}

fn is_better_without(costs: &[AttentionCost]) -> bool {
    let sum = |of: fn(&AttentionCost) -> f64| costs.iter().map(of).sum::<f64>();
    sum(|cost| cost.off_ms) < MARGIN * sum(|cost| cost.on_ms)
}

/// The costs of decodes of [`SIZES`] with flash attention and without; `None`: they cannot be measured.
fn costs(
    context: &mut Context,
    model: &Model,
    params: &ContextParams,
    threads: &ThreadPool,
    long: usize,
) -> Option<Vec<AttentionCost>> {
    let begin = Instant::now();
    let is_flash = context.has_flash_attention();
    // Without flash attention one token is decoded as two.
    let size = |n: usize, flash: bool| if flash { n } else { n.max(2) };
    let attention = |depth: usize, n: usize, flash: bool| {
        let cost = llama::attention_cost(model, threads, params.n_threads, depth, size(n, flash), flash)?;
        (begin.elapsed() < MOST).then_some(cost.as_secs_f64())
    };
    let mut decodes: HashMap<usize, f64> = HashMap::new();
    measure(context, &[1, 2, 4], &mut MOST.clone(), |n, time| _ = decodes.insert(n, time.as_secs_f64()));
    // The decodes were at no depth; llama.cpp uses cells in blocks of this many, which flash attention leaves out where they are empty.
    let rest = |n: usize, flash: bool| {
        let n = size(n, flash);
        let own = attention(SHORT, n, is_flash)? * if is_flash { n as f64 / SHORT as f64 } else { 1.0 };
        Some((decodes.get(&n)? - own).max(0.0))
    };
    let mut depths = vec![SHORT, long];
    depths.dedup();
    let mut all = Vec::new();
    for (depth, n_tokens) in depths.into_iter().flat_map(|depth| SIZES.map(|n| (depth, n))) {
        let ms = |flash| Some((rest(n_tokens, flash)? + attention(depth, n_tokens, flash)?) * 1e3);
        all.push(AttentionCost { depth, n_tokens, on_ms: ms(true)?, off_ms: ms(false)? });
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(figures: &[(f64, f64)]) -> Vec<AttentionCost> {
        figures
            .iter()
            .map(|(on_ms, off_ms)| AttentionCost { depth: 256, n_tokens: 1, on_ms: *on_ms, off_ms: *off_ms })
            .collect()
    }

    #[test]
    fn flash_attention_is_left_out_only_where_that_is_clearly_faster() {
        let is_better = |of: &[(f64, f64)]| is_better_without(&costs(of));
        assert!(!is_better(&[(10.0, 9.5), (20.0, 19.0)]));
        assert!(is_better(&[(10.0, 9.5), (20.0, 15.0)]));
        assert!(!is_better(&[(10.0, 12.0)]));
        assert!(!is_better(&[]));
    }
}
