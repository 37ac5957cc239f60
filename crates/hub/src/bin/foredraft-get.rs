//! Downloads a model, and prints the keys of `foredraft_load` for it.

use std::io::Write as _;
use std::process::ExitCode;

use foredraft_hub::{Beside, download};

const USAGE: &str = "foredraft-get [--only-model] owner/name[:quant] | owner/name/file.gguf | address

Downloads a model from Hugging Face into its cache, or finds it there, and prints its path as a configuration of foredraft_load, with a drafter
and a projector that lie beside it. Without a quantization it takes Q4_K_M, else Q8_0, else the first model. HF_HOME, HF_HUB_CACHE, HF_ENDPOINT,
HF_TOKEN and HF_HUB_OFFLINE are obeyed.";

fn main() -> ExitCode {
    let (options, references): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|it| it.starts_with("--"));
    let beside = match &*options {
        [] => Beside::All,
        [option] if option == "--only-model" => Beside::Nothing,
        _ => return failed(USAGE),
    };
    let [reference] = &*references else { return failed(USAGE) };
    let mut shown = u64::MAX;
    let mut show = |path: &str, done: u64, size: u64| {
        let percent = 100 * done / size.max(1);
        if percent != shown {
            shown = percent;
            let end = if done == size { "\n" } else { "" };
            eprint!("\r{path} {percent} % of {} MB{end}", size / 1_000_000);
        }
        Ok(())
    };
    match download(reference, beside, &mut show) {
        Ok(paths) => {
            let keys =
                paths.into_iter().map(|(key, path)| (key.to_owned(), path.to_string_lossy().into_owned().into()));
            let config = serde_json::Value::Object(keys.collect());
            // The reader may have ended.
            let _ = writeln!(std::io::stdout(), "{config:#}");
            ExitCode::SUCCESS
        }
        Err(error) => failed(&format!("foredraft-get: {}", error.message())),
    }
}

fn failed(message: &str) -> ExitCode {
    eprintln!("{message}");
    ExitCode::FAILURE
}
