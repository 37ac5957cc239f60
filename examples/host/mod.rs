//! A host of the library: loads it at run time, JSON in, JSON out. Shared by the examples and the tests.
#![allow(dead_code)] // each program uses a part

use std::error::Error;
use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libloading::Library;
use serde_json::{Value, json};

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The path of the library that cargo built together with this program.
pub fn library_path() -> Result<PathBuf> {
    let name = libloading::library_filename("foredraft");
    let program = std::env::current_exe()?;
    let folder = program.parent().ok_or("a program lies in a folder")?;
    // Tests are next to the library, in target/release/deps; examples in target/release/examples.
    let found = [folder.join(&name), folder.join("../deps").join(&name)].into_iter().find(|path| path.is_file());
    Ok(found.ok_or_else(|| format!("no {} near {}", name.display(), program.display()))?.canonicalize()?)
}

/// The loaded library. Dropping it calls `deinit`.
pub struct Host {
    library: Library,
}

impl Host {
    /// Loads the library.
    pub fn open() -> Result<Host> {
        // SAFETY: loading the library runs no code, and its functions have the types used below.
        Ok(Host { library: unsafe { Library::new(library_path()?)? } })
    }

    /// Loads the models.
    pub fn load(&self, model: &Path, draft: &Path) -> Result<()> {
        self.start(&json!({ "model": model, "model_draft": draft }))
    }

    /// Calls `init` with this object. Returns the error of the status if it fails.
    pub fn start(&self, config: &Value) -> Result<()> {
        let config = CString::new(config.to_string())?;
        // SAFETY: `int32_t init(const char *)`; the string outlives the call.
        let status = unsafe { self.library.get::<extern "C" fn(*const c_char) -> i32>(b"init")?(config.as_ptr()) };
        if status == 0 {
            return Ok(());
        }
        self.status()?;
        Err(format!("init returned {status}").into())
    }

    /// The answer of `poll_system_status`, or its error after a failed `init`.
    pub fn status(&self) -> Result<Value> {
        // SAFETY: `const char *poll_system_status(void)`.
        let answer = unsafe { self.library.get::<extern "C" fn() -> *const c_char>(b"poll_system_status")?() };
        self.taken(answer)
    }

    /// Calls a function with JSON in and out. An error object becomes an error.
    pub fn call(&self, function: &str, request: &Value) -> Result<Value> {
        let request = CString::new(request.to_string())?;
        // SAFETY: `const char *function(const char *)`; the string outlives the call.
        let answer = unsafe {
            self.library.get::<extern "C" fn(*const c_char) -> *const c_char>(function.as_bytes())?(request.as_ptr())
        };
        self.taken(answer)
    }

    /// Polls the newest request `n` times without reading the answers, and returns the time that took.
    pub fn empty_polls(&self, n: u32) -> Result<Duration> {
        // SAFETY: `const char *async_completion_poll(const char *)`, which takes NULL, and `void free_string(const char *)`.
        unsafe {
            let poll = self.library.get::<extern "C" fn(*const c_char) -> *const c_char>(b"async_completion_poll")?;
            let free = self.library.get::<extern "C" fn(*const c_char)>(b"free_string")?;
            let start = Instant::now();
            for _ in 0..n {
                free(poll(std::ptr::null()));
            }
            Ok(start.elapsed())
        }
    }

    /// Parses a returned string, and releases it.
    fn taken(&self, answer: *const c_char) -> Result<Value> {
        // SAFETY: the library returned it: not NULL, NUL-terminated, owned until `free_string`.
        let value: Value = unsafe {
            let parsed = serde_json::from_slice(CStr::from_ptr(answer).to_bytes());
            self.library.get::<extern "C" fn(*const c_char)>(b"free_string")?(answer);
            parsed?
        };
        match value["error"].as_str() {
            Some(error) => Err(error.into()),
            None => Ok(value),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: `void deinit(void)`.
        if let Ok(deinit) = unsafe { self.library.get::<extern "C" fn()>(b"deinit") } {
            deinit();
        }
    }
}

/// A target and its draft. An empty draft path means no draft, as in `init`.
pub struct Pair {
    pub name: &'static str,
    pub target: PathBuf,
    pub draft: PathBuf,
    /// A description of the two models.
    pub about: &'static str,
}

/// The enlarged SmolLM2, with a draft that nearly always agrees with it and one that agrees less often. `make models ARGS=--enlarged` creates
/// the files.
const REAL: [(&str, &str, &str, &str); 4] = [
    ("830M Q8_0, near draft", "smollm2-830m-q8_0.gguf", "smollm2-135m-q4_1.gguf", NEAR),
    ("830M Q8_0, far draft", "smollm2-830m-q8_0.gguf", "smollm2-far-q4_1.gguf", FAR),
    ("830M Q4_K, near draft", "smollm2-830m-q4_k.gguf", "smollm2-135m-q4_1.gguf", NEAR),
    ("830M Q4_K, far draft", "smollm2-830m-q4_k.gguf", "smollm2-far-q4_1.gguf", FAR),
];
const NEAR: &str = "SmolLM2-135M-Instruct (Q4_1, 98 MB), the very model that the target was made from: it is right about nearly every \
                    token, more often than the draft of an independently trained pair would be";
const FAR: &str =
    "SmolLM2-135M-Instruct without one of its 30 blocks: it is right less often, as a weakly matched draft is";

/// The enlarged SmolLM2 in `kind` (`Q8_0`, `Q4_K`), with each draft. Empty unless all files are in `target/models`.
pub fn real_pairs(kind: &str) -> Vec<Pair> {
    let file = |name: &str| root().join("target/models").join(name);
    REAL.into_iter()
        .filter(|(name, ..)| name.contains(kind))
        .map(|(name, target, draft, about)| Pair { name, target: file(target), draft: file(draft), about })
        .filter(|pair| pair.target.is_file() && pair.draft.is_file())
        .collect()
}

/// The pair in models/.
pub fn shipped_pair() -> Pair {
    Pair {
        name: "4.5M, shipped",
        target: root().join("models/stories-target.gguf"),
        draft: root().join("models/stories-draft.gguf"),
        about: "two toy models of 4.5 M and 0.5 M parameters, trained for the tests on generated stories",
    }
}

/// The pair named by a program's arguments, or a target alone.
pub fn given_pair(args: &[String]) -> Option<Pair> {
    let [target, rest @ ..] = args else { return None };
    let draft = rest.first().map(PathBuf::from).unwrap_or_default();
    Some(Pair { name: "the given models", target: target.into(), draft, about: "given on the command line" })
}

/// The cost of one or more answers.
#[derive(Debug, Default, Clone)]
pub struct Cost {
    /// The number of generated tokens, and their time in milliseconds.
    pub tokens: f64,
    pub ms: f64,
    /// The number of the target's decodes, and of drafted and accepted tokens.
    pub steps: f64,
    pub drafted: f64,
    pub accepted: f64,
    /// The time for drafting and for the target's decodes, in milliseconds.
    pub draft_ms: f64,
    pub verify_ms: f64,
}

impl Cost {
    /// Reads a final response.
    pub fn of(response: &Value) -> Cost {
        let number = |path: &str| response.pointer(path).and_then(Value::as_f64).unwrap_or(0.0);
        Cost {
            // The first token comes from the prompt, whose time is not in `predicted_ms`.
            tokens: (number("/timings/predicted_n") - 1.0).max(0.0),
            ms: number("/timings/predicted_ms"),
            steps: (number("/speculative/n_steps") - 1.0).max(0.0),
            drafted: number("/speculative/n_drafted"),
            accepted: number("/speculative/n_accepted"),
            draft_ms: number("/speculative/t_draft_ms"),
            verify_ms: number("/speculative/t_verify_ms"),
        }
    }

    /// Adds the cost of another answer.
    pub fn add(&mut self, other: &Cost) {
        self.tokens += other.tokens;
        self.ms += other.ms;
        self.steps += other.steps;
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        self.draft_ms += other.draft_ms;
        self.verify_ms += other.verify_ms;
    }

    /// Generated tokens per second, without the time of the prompt.
    pub fn speed(&self) -> f64 {
        1e3 * self.tokens / self.ms
    }

    /// The share of accepted tokens in percent. `-`: nothing was drafted.
    pub fn acceptance(&self) -> String {
        if self.drafted > 0.0 { format!("{:.0} %", 1e2 * self.accepted / self.drafted) } else { "-".into() }
    }

    /// Tokens per decode of the target.
    pub fn tokens_per_step(&self) -> f64 {
        self.tokens / self.steps
    }
}
