//! The command line flags: llama.cpp's names (from `common/arg.cpp`, and the old server's where they differ) and the keys they set.

/// A flag with all its names.
pub(super) struct Flag {
    pub names: &'static [&'static str],
    pub kind: FlagKind,
}

/// The value that a flag without argument sets.
#[derive(Debug, Clone, Copy)]
pub(super) enum FixedValue {
    Bool(bool),
    Word(&'static str),
}

impl serde::Serialize for FixedValue {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            FixedValue::Bool(value) => serializer.serialize_bool(value),
            FixedValue::Word(value) => serializer.serialize_str(value),
        }
    }
}

/// The argument of a flag, and the key it sets. `a.b` is the key `b` of the object `a`.
pub(super) enum FlagKind {
    /// No argument. Sets these keys.
    Set(&'static [(&'static str, FixedValue)]),
    /// A word. The load's parser validates it.
    Word(&'static str),
    /// One of these words, each with the word for the load's parser; or no argument, as in older versions of llama.cpp, which means
    /// `default`.
    OptionalWord { key: &'static str, words: &'static [(&'static str, &'static str)], default: &'static str },
    /// A whole number.
    Int(&'static str),
    /// A number.
    Number(&'static str),
    /// A whole number or a word. The load's parser validates it.
    IntOrWord(&'static str),
    /// A whole number. Without an argument the flag once had another meaning; it is then ignored with the warning `why`.
    IntOrNothing { key: &'static str, why: &'static str },
    /// Names separated by commas.
    Names(&'static str),
    /// Numbers separated by commas or slashes.
    Split(&'static str),
    /// A number. Its reciprocal is set.
    Reciprocal(&'static str),
    /// `key=type:value`, several separated by commas. Appended to those of earlier flags.
    Overrides(&'static str),
    /// Paths of LoRA adapters, separated by commas. Appended.
    Adapters(&'static str),
    /// `path:scale`, several separated by commas. Appended.
    ScaledAdapters(&'static str),
    /// llama.cpp's load mode: sets `use_mmap` and `use_mlock`.
    LoadMode,
    /// Sets `read_timeout` and `write_timeout`.
    Timeout,
    /// Ignored with a warning: it concerns an HTTP server, or is always on.
    Ignored { value: bool },
    /// Ignored with a warning, with or without one of these words.
    IgnoredWord(&'static [&'static str]),
    /// Ignored with a warning: it is a field of requests, as in the old server.
    InRequest { value: bool },
    /// An error with this message.
    Unsupported(&'static str),
}

use FixedValue::{Bool, Word as Text};
use FlagKind::*;

const fn flag(names: &'static [&'static str], kind: FlagKind) -> Flag {
    Flag { names, kind }
}

const LOW_VRAM: &str = "without a number it is --low-vram, which llama.cpp no longer has: ignored";
const NOT_YET: &str = "not available in this version of foredraft";

pub(super) static FLAGS: &[Flag] = &[
    // Models.
    flag(&["-m", "--model"], Word("model")),
    flag(&["--mmproj", "-mm"], Word("mmproj")),
    flag(&["-md", "--model-draft", "--spec-draft-model"], Word("model_draft")),
    flag(&["-a", "--alias"], Word("model_alias")),
    flag(&["--lora"], Adapters("lora")),
    flag(&["--lora-scaled"], ScaledAdapters("lora")),
    flag(&["--override-kv"], Overrides("override_kv")),
    flag(&["--check-tensors"], Set(&[("check_tensors", Bool(true))])),
    flag(&["--chat-template"], Word("chat_template")),
    flag(&["--chat-template-file"], Word("chat_template_file")),
    flag(&["--spm-infill"], Set(&[("spm_infill", Bool(true))])),
    flag(&["--warmup"], Set(&[("warmup", Bool(true))])),
    flag(&["--no-warmup"], Set(&[("warmup", Bool(false))])),
    // Memory and devices.
    flag(&["--mmap"], Set(&[("use_mmap", Bool(true))])),
    flag(&["--no-mmap"], Set(&[("use_mmap", Bool(false))])),
    flag(&["--repack"], Set(&[("repack", Bool(true))])),
    flag(&["-nr", "--no-repack"], Set(&[("repack", Bool(false))])),
    flag(&["--mlock"], Set(&[("use_mlock", Bool(true))])),
    flag(&["-lm", "--load-mode"], LoadMode),
    flag(
        &["--numa"],
        OptionalWord {
            key: "numa",
            words: &[("distribute", "distribute"), ("isolate", "isolate"), ("numactl", "numactl")],
            default: "distribute",
        },
    ),
    flag(&["-ngl", "--gpu-layers", "--n-gpu-layers"], IntOrWord("n_gpu_layers")),
    flag(&["-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl"], IntOrWord("n_gpu_layers_draft")),
    flag(&["-sm", "--split-mode"], Word("split_mode")),
    flag(&["-ts", "--tensor-split"], Split("tensor_split")),
    flag(&["-ot", "--override-tensor"], Names("override_tensor")),
    flag(&["-otd", "--override-tensor-draft", "--spec-draft-override-tensor"], Names("override_tensor_draft")),
    flag(&["-cmoe", "--cpu-moe"], Set(&[("n_cpu_moe", Text("all"))])),
    flag(&["-ncmoe", "--n-cpu-moe"], Int("n_cpu_moe")),
    flag(&["-cmoed", "--cpu-moe-draft", "--spec-draft-cpu-moe"], Set(&[("n_cpu_moe_draft", Text("all"))])),
    flag(&["-ncmoed", "--n-cpu-moe-draft", "--spec-draft-n-cpu-moe"], Int("n_cpu_moe_draft")),
    flag(&["-mg", "--main-gpu"], Int("main_gpu")),
    flag(&["-dev", "--device"], Names("devices")),
    flag(&["-devd", "--device-draft", "--spec-draft-device"], Names("devices_draft")),
    flag(&["-fit", "--fit"], Word("fit")),
    flag(&["-fitt", "--fit-target"], Int("fit_margin_mb")),
    flag(&["-fitc", "--fit-ctx"], Int("fit_ctx")),
    flag(&["--rpc"], Names("rpc")),
    // Context.
    flag(&["-c", "--ctx-size"], Int("n_ctx")),
    flag(&["-cd", "--ctx-size-draft"], Int("n_ctx_draft")),
    flag(&["-b", "--batch-size"], Int("n_batch")),
    flag(&["-ub", "--ubatch-size"], Int("n_ubatch")),
    flag(&["-np", "--parallel"], Int("n_parallel")),
    flag(&["-kvu", "--kv-unified"], Set(&[("kv_unified", Bool(true))])),
    flag(&["-no-kvu", "--no-kv-unified"], Set(&[("kv_unified", Bool(false))])),
    flag(&["-t", "--threads"], Int("n_threads")),
    flag(&["-tb", "--threads-batch"], Int("n_threads_batch")),
    flag(&["-td", "--threads-draft", "--spec-draft-threads"], Int("n_threads_draft")),
    flag(&["-tbd", "--threads-batch-draft", "--spec-draft-threads-batch"], Int("n_threads_batch_draft")),
    flag(&["--prio"], IntOrWord("prio")),
    flag(&["--prio-batch"], IntOrWord("prio_batch")),
    flag(&["--prio-draft", "--spec-draft-prio"], IntOrWord("prio_draft")),
    flag(&["--prio-batch-draft", "--spec-draft-prio-batch"], IntOrWord("prio_batch_draft")),
    flag(&["-C", "--cpu-mask"], Word("cpu_mask")),
    flag(&["-Cb", "--cpu-mask-batch"], Word("cpu_mask_batch")),
    flag(&["-Cd", "--cpu-mask-draft", "--spec-draft-cpu-mask"], Word("cpu_mask_draft")),
    flag(&["-Cbd", "--cpu-mask-batch-draft", "--spec-draft-cpu-mask-batch"], Word("cpu_mask_batch_draft")),
    flag(&["-Cr", "--cpu-range"], Word("cpu_range")),
    flag(&["-Crb", "--cpu-range-batch"], Word("cpu_range_batch")),
    flag(&["-Crd", "--cpu-range-draft", "--spec-draft-cpu-range"], Word("cpu_range_draft")),
    flag(&["-Crbd", "--cpu-range-batch-draft", "--spec-draft-cpu-range-batch"], Word("cpu_range_batch_draft")),
    flag(&["--cpu-strict"], Int("cpu_strict")),
    flag(&["--cpu-strict-batch"], Int("cpu_strict_batch")),
    flag(&["--cpu-strict-draft", "--spec-draft-cpu-strict"], Int("cpu_strict_draft")),
    flag(&["--cpu-strict-batch-draft", "--spec-draft-cpu-strict-batch"], Int("cpu_strict_batch_draft")),
    flag(&["--poll"], Int("poll")),
    flag(&["--poll-batch"], Int("poll_batch")),
    flag(&["--poll-draft", "--spec-draft-poll"], Int("poll_draft")),
    flag(&["--poll-batch-draft", "--spec-draft-poll-batch"], Int("poll_batch_draft")),
    flag(
        &["-fa", "--flash-attn"],
        OptionalWord {
            key: "flash_attn",
            words: &[
                ("on", "on"),
                ("enabled", "on"),
                ("true", "on"),
                ("1", "on"),
                ("off", "off"),
                ("disabled", "off"),
                ("false", "off"),
                ("0", "off"),
                ("auto", "auto"),
                ("-1", "auto"),
            ],
            default: "on",
        },
    ),
    flag(&["-ctk", "--cache-type-k"], Word("cache_type_k")),
    flag(&["-ctv", "--cache-type-v"], Word("cache_type_v")),
    flag(&["-ctkd", "--cache-type-k-draft", "--spec-draft-type-k"], Word("cache_type_k_draft")),
    flag(&["-ctvd", "--cache-type-v-draft", "--spec-draft-type-v"], Word("cache_type_v_draft")),
    flag(&["--memory-f32"], Set(&[("cache_type_k", Text("f32")), ("cache_type_v", Text("f32"))])),
    flag(&["-kvo", "--kv-offload"], Set(&[("offload_kqv", Bool(true))])),
    flag(&["-nkvo", "--no-kv-offload"], Set(&[("offload_kqv", Bool(false))])),
    flag(&["--swa-full"], Set(&[("swa_full", Bool(true))])),
    flag(&["--rope-scaling"], Word("rope_scaling")),
    flag(&["--rope-scale"], Reciprocal("rope_freq_scale")),
    flag(&["--rope-freq-base"], Number("rope_freq_base")),
    flag(&["--rope-freq-scale"], Number("rope_freq_scale")),
    flag(&["--yarn-orig-ctx"], Int("yarn_orig_ctx")),
    flag(&["--yarn-ext-factor"], Number("yarn_ext_factor")),
    flag(&["--yarn-attn-factor"], Number("yarn_attn_factor")),
    flag(&["--yarn-beta-fast"], Number("yarn_beta_fast")),
    flag(&["--yarn-beta-slow"], Number("yarn_beta_slow")),
    flag(&["-gan", "--grp-attn-n"], Int("grp_attn_n")),
    flag(&["-gaw", "--grp-attn-w"], Int("grp_attn_w")),
    flag(&["--context-shift"], Set(&[("ctx_shift", Bool(true))])),
    flag(&["--no-context-shift"], Set(&[("ctx_shift", Bool(false))])),
    flag(&["--keep"], Int("n_keep")),
    flag(&["--cache-reuse"], Int("n_cache_reuse")),
    flag(&["--embedding", "--embeddings"], Set(&[("embedding", Bool(true))])),
    flag(&["--pooling"], Word("pooling")),
    flag(&["--rerank", "--reranking"], Set(&[("reranking", Bool(true))])),
    // Defaults for requests.
    flag(&["-s", "--seed"], Int("seed")),
    flag(&["--spec-type"], Names("speculative.type")),
    // The old server's flag and its key `n_draft`: the first length of `speculative.cpp`'s rule, else the most.
    flag(&["--draft"], Int("speculative.n_draft")),
    flag(&["--spec-draft-n-max", "--draft-n", "--draft-max"], Int("speculative.n_max")),
    flag(&["--spec-draft-n-min", "--draft-min", "--draft-n-min"], Int("speculative.n_min")),
    flag(&["--spec-draft-p-min", "--draft-p-min"], Number("speculative.p_min")),
    flag(&["--spec-draft-p-split", "--draft-p-split"], Number("speculative.p_split")),
    flag(
        &["--spec-ngram-simple-size-n", "--spec-ngram-simple-size-m", "--spec-ngram-simple-min-hits"],
        Ignored { value: true },
    ),
    flag(
        &["--spec-ngram-map-k-size-n", "--spec-ngram-map-k-size-m", "--spec-ngram-map-k-min-hits"],
        Ignored { value: true },
    ),
    flag(
        &["--spec-ngram-map-k4v-size-n", "--spec-ngram-map-k4v-size-m", "--spec-ngram-map-k4v-min-hits"],
        Ignored { value: true },
    ),
    flag(&["--spec-ngram-mod-n-match", "--spec-ngram-mod-n-min", "--spec-ngram-mod-n-max"], Ignored { value: true }),
    flag(&["--spec-ngram-size-n", "--spec-ngram-size-m", "--spec-ngram-min-hits"], Ignored { value: true }),
    flag(&["-lcs", "--lookup-cache-static"], Word("lookup_cache_static")),
    flag(&["-lcd", "--lookup-cache-dynamic"], Word("lookup_cache_dynamic")),
    // Log.
    flag(&["-lv"], IntOrNothing { key: "log_level", why: LOW_VRAM }),
    flag(&["--verbosity", "--log-verbosity"], IntOrWord("log_level")),
    flag(&["-v", "--verbose", "--log-verbose"], Set(&[("log_level", Text("debug"))])),
    flag(&["--log-disable"], Set(&[("log_level", Text("none"))])),
    // HTTP options of the old server and of llama-server.
    flag(&["--host"], Word("hostname")),
    flag(&["--port"], Int("port")),
    flag(&["--path"], Word("public_path")),
    flag(&["-to", "--timeout"], Timeout),
    flag(&["--reuse-port", "--metrics", "--props", "--slots", "--no-slots"], Ignored { value: false }),
    flag(&["--ui", "--webui", "--no-ui", "--no-webui"], Ignored { value: false }),
    flag(&["--threads-http", "--api-prefix", "--sse-ping-interval"], Ignored { value: true }),
    flag(&["--api-key", "--api-key-file", "--ssl-key-file", "--ssl-cert-file"], Ignored { value: true }),
    flag(&["--cors-origins", "--cors-methods", "--cors-headers"], Ignored { value: true }),
    flag(&["--cors-credentials", "--no-cors-credentials"], Ignored { value: false }),
    flag(&["--ui-config", "--webui-config", "--ui-config-file", "--webui-config-file"], Ignored { value: true }),
    flag(&["--jinja", "-cb", "--cont-batching", "--memory-f16"], Ignored { value: false }),
    flag(&["-nommq", "--no-mul-mat-q", "--perf", "--no-perf"], Ignored { value: false }),
    flag(&["--log-colors"], Ignored { value: true }),
    // Options that are fields of requests.
    flag(&["-p", "--prompt", "-n", "--predict", "--n-predict", "-r", "--reverse-prompt"], InRequest { value: true }),
    flag(&["--temp", "--temperature", "--top-k", "--top-p", "--min-p", "--samplers"], InRequest { value: true }),
    flag(&["--tfs", "--typical", "--repeat-penalty", "--repeat-last-n"], InRequest { value: true }),
    flag(&["--frequency-penalty", "--presence-penalty", "-l", "--logit-bias"], InRequest { value: true }),
    flag(&["--mirostat", "--mirostat-lr", "--mirostat-ent", "--grammar"], InRequest { value: true }),
    flag(&["--ignore-eos", "--no-penalize-nl", "-sp", "--special"], InRequest { value: false }),
    flag(&["-f", "--file", "-bf", "--binary-file", "--in-file", "--context-file"], InRequest { value: true }),
    flag(&["-sys", "--system-prompt", "-sysf", "--system-prompt-file"], InRequest { value: true }),
    flag(&["--in-prefix", "--in-suffix"], InRequest { value: true }),
    flag(&["--in-prefix-bos", "-e", "--escape", "--no-escape"], InRequest { value: false }),
    flag(&["--prompt-cache"], InRequest { value: true }),
    flag(&["--prompt-cache-all", "--prompt-cache-ro"], InRequest { value: false }),
    flag(&["--cache-prompt", "--no-cache-prompt", "--parse-special", "--no-parse-special"], InRequest { value: false }),
    flag(
        &["--sampler-seq", "--sampling-seq", "--typical-p", "--top-nsigma", "--top-n-sigma"],
        InRequest { value: true },
    ),
    flag(&["--xtc-probability", "--xtc-threshold", "--dynatemp-range", "--dynatemp-exp"], InRequest { value: true }),
    flag(
        &["--dry-multiplier", "--dry-base", "--dry-allowed-length", "--dry-penalty-last-n"],
        InRequest { value: true },
    ),
    flag(&["--dry-sequence-breaker", "--adaptive-target", "--adaptive-decay"], InRequest { value: true }),
    flag(&["--grammar-file", "-j", "--json-schema", "-jf", "--json-schema-file"], InRequest { value: true }),
    flag(&["--chat-template-kwargs", "--reasoning-format", "-rea", "--reasoning"], InRequest { value: true }),
    flag(&["--reasoning-budget", "--reasoning-budget-message", "--reasoning-effort"], InRequest { value: true }),
    flag(&["--embd-normalize"], InRequest { value: true }),
    // Options of llama.cpp's programs, of today and of the old server's time.
    flag(&["-co", "--color"], IgnoredWord(&["on", "off", "auto"])),
    flag(&["-i", "--interactive", "-if", "--interactive-first", "-ins", "--instruct"], Ignored { value: false }),
    flag(&["--infill", "-mli", "--multiline-input", "--simple-io", "--random-prompt"], Ignored { value: false }),
    flag(&["-cnv", "--conversation", "-no-cnv", "--no-conversation", "-st", "--single-turn"], Ignored { value: false }),
    flag(&["--display-prompt", "--no-display-prompt", "--show-timings", "--no-show-timings"], Ignored { value: false }),
    flag(&["--perplexity", "--ppl", "--no-ppl", "--hellaswag", "--winogrande"], Ignored { value: false }),
    flag(&["--ppl-stride", "--ppl-output-type", "--hellaswag-tasks", "--winogrande-tasks"], Ignored { value: true }),
    flag(&["--chunks", "-ns", "--sequences"], Ignored { value: true }),
    flag(&["--cfg-negative-prompt", "--cfg-negative-prompt-file", "--cfg-scale"], Ignored { value: true }),
    flag(&["--log-file"], Ignored { value: true }),
    flag(
        &["--log-test", "--log-enable", "--log-new", "--log-append", "--log-prefix", "--no-log-prefix"],
        Ignored { value: false },
    ),
    flag(&["--log-timestamps", "--no-log-timestamps", "--log-jsonl", "--no-log-jsonl"], Ignored { value: false }),
    flag(&["-nocb", "--no-cont-batching", "--no-jinja", "--offline", "-dio", "--direct-io"], Ignored { value: false }),
    flag(&["--op-offload", "--no-op-offload", "--no-host"], Ignored { value: false }),
    flag(&["-dt", "--defrag-thold", "-sps", "--slot-prompt-similarity", "--slot-save-path"], Ignored { value: true }),
    flag(&["-cram", "--cache-ram", "-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"], Ignored { value: true }),
    flag(
        &["--cache-idle-slots", "--no-cache-idle-slots", "--prefill-assistant", "--no-prefill-assistant"],
        Ignored { value: false },
    ),
    flag(
        &["--skip-chat-parsing", "--no-skip-chat-parsing", "--reasoning-preserve", "--no-reasoning-preserve"],
        Ignored { value: false },
    ),
    flag(&["--sleep-idle-seconds", "--media-path", "--tags"], Ignored { value: true }),
    // Options of the old server that llama.cpp no longer has.
    flag(&["--lora-base", "-gqa", "--gqa", "-eps", "--rms-norm-eps", "-ld", "--logdir"], Ignored { value: true }),
    flag(&["--low-vram", "--mtest", "--export", "--verbose-prompt"], Ignored { value: false }),
    flag(
        &[
            "-hf",
            "-hfr",
            "--hf-repo",
            "-hff",
            "--hf-file",
            "-hfd",
            "-hfrd",
            "--hf-repo-draft",
            "-hft",
            "--hf-token",
            "-dr",
            "--docker-repo",
            "-mu",
            "--model-url",
        ],
        Unsupported("models are not downloaded; set a file with -m"),
    ),
    flag(&["--mtp", "--eagle3", "--dflash"], Unsupported(NOT_YET)),
];
