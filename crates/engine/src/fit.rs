//! Chooses how many layers go to GPUs, and how long the context is, so that all fits into the devices' free memory (`"fit": true`).
//!
//! llama.cpp estimates the memory of each choice, for models and contexts that allocate nothing. First the context becomes shorter, as far
//! as the host allows it; then layers of the target stay on the CPU, then layers of the draft model.

use std::collections::HashMap;

use super::builder::sequences;
use super::config::{Config, DeviceFit, FitReport, FitSettings};
use super::embedder;
use super::rollback::with_rollback;
use foredraft_base::error::Result;
use foredraft_llama as llama;
use foredraft_llama::log::{self, Level};
use foredraft_llama::{ContextParams, Device, DevicePlacement, DeviceUse, DraftKind, Model, ModelParams};

/// The step between the context lengths that are tried, from the shortest one on.
const N_CTX_STEP: u32 = 256;

/// [`Model::load`] or [`Model::load_draft`].
type LoadModel = fn(&ModelParams, fn(f32) -> bool) -> Result<Model>;

/// A number of layers of each model, and a context length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FitChoice {
    n_ctx: u32,
    /// The target's layers whose experts stay on the CPU.
    cpu_moe: u32,
    layers: u32,
    draft_layers: u32,
}

/// Reduces `n_ctx` and `n_gpu_layers` of a configuration to what fits. `None`: there is no GPU to fit into, or it is not known what the
/// models take; the load then reports why.
pub(super) fn fit(config: &mut Config) -> Option<FitReport> {
    let settings = config.fit.filter(|_| !config.model.vocab_only)?;
    let limits = limits(&llama::devices(), settings.margin);
    if limits.is_empty() {
        return None;
    }
    match fit_into(config, settings, &limits) {
        Ok(report) => Some(report),
        Err(error) => {
            log::write(Level::Warn, &format!("fit: not used: {}", error.message()));
            None
        }
    }
}

/// The bytes that may be used on each device with memory of its own. A device that does not know its memory has no limit.
fn limits(devices: &[Device], margin: u64) -> HashMap<String, u64> {
    let own = devices.iter().filter(|device| device.kind != "cpu" && device.memory_total > 0);
    own.map(|device| (device.name.clone(), (device.memory_free as u64).saturating_sub(margin))).collect()
}

fn fit_into(config: &mut Config, settings: FitSettings, limits: &HashMap<String, u64>) -> Result<FitReport> {
    let target = measured(&config.model, config.mtp, Model::load)?;
    let n_ctx = llama::context_length(&config.context, &target);
    let given = config.context.n_ctx.filter(|n_ctx| *n_ctx > 0);
    let least_n_ctx = settings.least_n_ctx.or(given).unwrap_or(llama::DEFAULT_N_CTX).min(n_ctx);
    let draft = match &config.draft {
        Some((params, _)) => Some(layers_of(&measured(params, false, Model::load_draft)?, params)),
        None => None,
    };
    let layers = layers_of(&target, &config.model);
    let most = FitChoice { n_ctx, cpu_moe: config.model.n_cpu_moe, layers, draft_layers: draft.unwrap_or(0) };
    let n_layer = u32::try_from(target.n_layer()).unwrap_or(ModelParams::ALL_LAYERS);
    let most_cpu_moe = if target.has_experts() { n_layer.max(most.cpu_moe) } else { most.cpu_moe };
    drop(target);
    let mut estimates = Estimates { config, most, target: HashMap::new(), draft: HashMap::new() };
    // A context that llama.cpp refuses does not fit, either: a buffer can be too large for a device.
    let mut refusal = None;
    let (choice, fits) = choose(most, least_n_ctx, most_cpu_moe, |choice| match estimates.both(choice) {
        Ok(placements) => {
            refusal = None;
            limits.iter().all(|(device, limit)| bytes_on(device, &placements) <= *limit)
        }
        Err(error) => {
            refusal = Some(error);
            false
        }
    });
    if let Some(error) = refusal.filter(|_| !fits) {
        return Err(error);
    }
    // The estimates of both choices are known already.
    let [asked, needed] = [most, choice].map(|choice| estimates.both(choice).ok());
    let mut devices: Vec<DeviceFit> = limits
        .iter()
        .map(|(device, limit)| {
            let bytes = |of: &Option<[DevicePlacement; 2]>| of.as_ref().map(|placements| bytes_on(device, placements));
            DeviceFit { name: device.clone(), limit: *limit, asked: bytes(&asked), needed: bytes(&needed) }
        })
        .collect();
    devices.sort_by(|a, b| a.name.cmp(&b.name));
    let report = FitReport {
        devices,
        n_cpu_moe: choice.cpu_moe,
        n_gpu_layers: choice.layers,
        n_gpu_layers_draft: draft.map(|_| choice.draft_layers),
        n_ctx: choice.n_ctx,
        is_reduced: choice != most,
        fits,
    };
    apply(config, most, choice);
    Ok(report)
}

/// The bytes of target and draft on a device.
fn bytes_on(device: &str, placements: &[DevicePlacement; 2]) -> u64 {
    placements.iter().filter_map(|of| of.on(device)).map(DeviceUse::bytes).sum()
}

/// A model that allocates nothing.
fn measured(params: &ModelParams, mtp: bool, load: LoadModel) -> Result<Model> {
    load(&ModelParams { only_measures: true, mtp, ..params.clone() }, |_| true)
}

/// The layers that would be on GPUs, with the output as one.
fn layers_of(model: &Model, params: &ModelParams) -> u32 {
    let all = u32::try_from(model.n_layer() + model.n_mtp_layers() + 1).unwrap_or(u32::MAX);
    u32::try_from(params.n_gpu_layers).map_or(all, |asked| asked.min(all))
}

/// Applies a choice to the configuration.
fn apply(config: &mut Config, most: FitChoice, choice: FitChoice) {
    config.model = with_choice(&config.model, most, choice);
    if choice.n_ctx < most.n_ctx {
        config.context.n_ctx = Some(choice.n_ctx);
    }
    if let Some((model, context)) = &mut config.draft {
        *model = with_layers(model, most.draft_layers, choice.draft_layers);
        *context = draft_context(context, most.n_ctx, choice.n_ctx);
    }
}

/// The target with a choice.
fn with_choice(params: &ModelParams, most: FitChoice, choice: FitChoice) -> ModelParams {
    ModelParams { n_cpu_moe: choice.cpu_moe, ..with_layers(params, most.layers, choice.layers) }
}

/// A model with this number of layers on GPUs. A number that is not reduced stays as it was given, so that engines with the same settings
/// share the model.
fn with_layers(params: &ModelParams, most: u32, layers: u32) -> ModelParams {
    let fewer = (layers < most).then(|| i32::try_from(layers).unwrap_or(i32::MAX));
    ModelParams { n_gpu_layers: fewer.unwrap_or(params.n_gpu_layers), ..params.clone() }
}

/// The draft's context where the target's has this length: no longer, if the target's is shorter than requested.
fn draft_context(context: &ContextParams, most: u32, n_ctx: u32) -> ContextParams {
    let given = context.n_ctx.filter(|given| *given > 0);
    let shorter = (n_ctx < most).then(|| given.map_or(n_ctx, |given| given.min(n_ctx)));
    ContextParams { n_ctx: shorter.or(context.n_ctx), ..context.clone() }
}

/// The memory that choices take on the devices, each estimated once.
struct Estimates<'a> {
    config: &'a Config,
    /// The choice without reductions.
    most: FitChoice,
    target: HashMap<(u32, u32, u32), DevicePlacement>,
    draft: HashMap<(u32, u32), DevicePlacement>,
}

impl Estimates<'_> {
    /// Estimates target and draft.
    fn both(&mut self, choice: FitChoice) -> Result<[DevicePlacement; 2]> {
        Ok([self.target(choice)?, self.draft(choice)?])
    }

    /// The target, whose weights a draft head may use.
    fn measured_target(&self) -> Result<Model> {
        measured(&self.config.model, self.config.mtp, Model::load)
    }

    fn target(&mut self, choice: FitChoice) -> Result<DevicePlacement> {
        let key = (choice.layers, choice.cpu_moe, choice.n_ctx);
        if let Some(known) = self.target.get(&key) {
            return Ok(known.clone());
        }
        let config = self.config;
        let params = with_choice(&config.model, self.most, choice);
        let context = ContextParams { n_ctx: Some(choice.n_ctx), ..config.context.clone() };
        let found = self.estimate(&params, config.mtp, &context, config.embedding, Model::load)?;
        self.target.insert(key, found.clone());
        Ok(found)
    }

    fn draft(&mut self, choice: FitChoice) -> Result<DevicePlacement> {
        let key = (choice.draft_layers, choice.n_ctx);
        if let Some(known) = self.draft.get(&key) {
            return Ok(known.clone());
        }
        let Some((params, context)) = &self.config.draft else { return Ok(DevicePlacement::default()) };
        let context = draft_context(context, self.most.n_ctx, choice.n_ctx);
        let context = ContextParams { n_ctx: context.n_ctx.or(Some(choice.n_ctx)), drafts: true, ..context };
        let params = with_layers(params, self.most.draft_layers, choice.draft_layers);
        let found = self.estimate(&params, false, &context, false, Model::load_draft)?;
        self.draft.insert(key, found.clone());
        Ok(found)
    }

    /// Estimates a model with a context for slots, and with one for embeddings if it `embeds`.
    fn estimate(
        &self,
        params: &ModelParams,
        mtp: bool,
        context: &ContextParams,
        embeds: bool,
        load: LoadModel,
    ) -> Result<DevicePlacement> {
        let model = measured(params, mtp, load)?;
        // Weights that another engine has are shared.
        let mut placement = if Model::is_loaded(&ModelParams { mtp, ..params.clone() }) {
            DevicePlacement::default()
        } else {
            model.placement()
        };
        let n_parallel = self.config.n_parallel.max(1);
        let n_seq_max = u32::try_from(n_parallel).unwrap_or(u32::MAX);
        let context = ContextParams { n_seq_max, embeddings: false, ..context.clone() };
        let shared = sequences(&context, n_parallel, &model, self.config.self_extend);
        let shared = if context.drafts { shared } else { with_rollback(shared, &model) };
        let rolls_back = !model.has_recurrent_states() || shared.n_rollback > 0;
        let embedder = embeds.then(|| embedder::context_params(&context, &model));
        for context in std::iter::once(shared).chain(embedder) {
            match model.draft_kind() {
                DraftKind::Model => placement.add_estimate(&model, &context)?,
                DraftKind::Mtp => _ = placement.add_mtp_estimate(&model, &context),
                // The load says why llama.cpp refuses a head's context.
                _ => _ = placement.add_head_estimate(&model, &context, &self.measured_target()?),
            }
        }
        if mtp && model.n_mtp_layers() > 0 && rolls_back {
            // The load goes on without one that llama.cpp refuses.
            let _ = placement.add_mtp_estimate(&model, &ContextParams { swa_full: true, ..context });
        }
        Ok(placement)
    }
}

/// The choice that fits: first with a shorter context, then with more experts on the CPU (of up to `most_cpu_moe` layers), then with fewer layers
/// of the target, then of the draft model. The flag is false if nothing fits; the choice is then the least one.
fn choose(
    most: FitChoice,
    least_n_ctx: u32,
    most_cpu_moe: u32,
    mut fits: impl FnMut(FitChoice) -> bool,
) -> (FitChoice, bool) {
    if fits(most) {
        return (most, true);
    }
    let short = FitChoice { n_ctx: least_n_ctx, ..most };
    if least_n_ctx < most.n_ctx && fits(short) {
        let steps = (most.n_ctx - least_n_ctx) / N_CTX_STEP;
        let of = |step: u32| FitChoice { n_ctx: least_n_ctx + step * N_CTX_STEP, ..most };
        return (of(largest(steps + 1, |step| fits(of(step)))), true);
    }
    let without_experts = FitChoice { cpu_moe: most_cpu_moe, ..short };
    if most_cpu_moe > most.cpu_moe && fits(without_experts) {
        let with = |kept: u32| FitChoice { cpu_moe: most_cpu_moe - kept, ..short };
        return (with(largest(most_cpu_moe - most.cpu_moe, |kept| fits(with(kept)))), true);
    }
    let without = FitChoice { layers: 0, ..without_experts };
    if fits(without) {
        let layers = largest(most.layers, |layers| fits(FitChoice { layers, ..without_experts }));
        return (FitChoice { layers, ..without_experts }, true);
    }
    let least = FitChoice { draft_layers: 0, ..without };
    if most.draft_layers > 0 && fits(least) {
        let draft_layers = largest(most.draft_layers, |draft_layers| fits(FitChoice { draft_layers, ..without }));
        return (FitChoice { draft_layers, ..without }, true);
    }
    (least, false)
}

/// The largest number below `end` for which `fits` is true. It is true for 0, and false for `end`.
fn largest(end: u32, mut fits: impl FnMut(u32) -> bool) -> u32 {
    let (mut low, mut high) = (0, end);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: FitChoice = FitChoice { n_ctx: 10_000, cpu_moe: 0, layers: 33, draft_layers: 9 };

    /// The choice where a layer takes 100, a draft's layer 10, 1000 tokens of a layer 20, and the rest 50.
    fn chosen(memory: u32, least_n_ctx: u32) -> (FitChoice, bool) {
        let mut n_asked = 0;
        let found = choose(MOST, least_n_ctx, 0, |choice| {
            n_asked += 1;
            assert!(choice.n_ctx >= least_n_ctx && choice.n_ctx <= MOST.n_ctx);
            let cells = choice.n_ctx * (choice.layers + choice.draft_layers) / 50;
            50 + 100 * choice.layers + 10 * choice.draft_layers + cells <= memory
        });
        assert!(n_asked <= 10, "{n_asked}");
        found
    }

    #[test]
    fn what_fits_is_not_reduced() {
        assert_eq!(chosen(12_000, 4096), (MOST, true));
        assert_eq!(chosen(11_840, 10_000), (MOST, true));
    }

    #[test]
    fn the_context_is_shortened_before_layers_are_left_out() {
        // 3440 without cells, so 3560 are left for 42 layers: 4238 tokens.
        assert_eq!(chosen(7000, 1000), (FitChoice { n_ctx: 4072, ..MOST }, true));
        // No step of 256 tokens fits beside the shortest one.
        assert_eq!(chosen(7000, 4200), (FitChoice { n_ctx: 4200, ..MOST }, true));
    }

    #[test]
    fn as_many_layers_stay_as_fit() {
        // The draft takes 1940, and a layer of the target 300.
        assert_eq!(chosen(7000, 10_000), (FitChoice { layers: 16, ..MOST }, true));
        assert_eq!(chosen(2239, 10_000), (FitChoice { layers: 0, ..MOST }, true));
        // With a shorter context more layers fit.
        assert_eq!(chosen(3000, 1000), (FitChoice { n_ctx: 1000, layers: 22, ..MOST }, true));
    }

    #[test]
    fn the_draft_loses_layers_last() {
        assert_eq!(chosen(1900, 10_000), (FitChoice { layers: 0, draft_layers: 8, ..MOST }, true));
        assert_eq!(chosen(49, 4096), (FitChoice { n_ctx: 4096, cpu_moe: 0, layers: 0, draft_layers: 0 }, false));
    }

    #[test]
    fn experts_leave_the_gpu_before_whole_layers_do() {
        // Each of 32 layers takes 10 and 90 for its experts.
        let chosen = |memory: u32| {
            choose(MOST, MOST.n_ctx, 32, |choice| {
                10 * choice.layers + 90 * choice.layers.min(32 - choice.cpu_moe) <= memory
            })
        };
        assert_eq!(chosen(4000), (MOST, true));
        assert_eq!(chosen(1000), (FitChoice { cpu_moe: 25, ..MOST }, true));
        assert_eq!(chosen(100), (FitChoice { cpu_moe: 32, layers: 10, ..MOST }, true));
    }

    #[test]
    fn only_devices_with_memory_of_their_own_have_limits() {
        let device = |name: &str, kind, memory_total| Device {
            name: name.to_owned(),
            description: String::new(),
            kind,
            memory_free: 900,
            memory_total,
        };
        let devices = [device("CPU", "cpu", 1000), device("A", "gpu", 1000), device("B", "gpu", 0)];
        assert_eq!(limits(&devices, 200), HashMap::from([("A".to_owned(), 700)]));
        assert_eq!(limits(&devices, 1000), HashMap::from([("A".to_owned(), 0)]));
    }
}
