//! The identity of a model, for comparing it with the model of a saved session.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::OnceLock;

use super::{Model, ModelParams, Token, shards};
use crate::checksum::Checksum;

/// The number of samples of a file, evenly spaced, and their size in bytes. (Models of the same architecture differ in all weights.)
const PIECES: u64 = 64;
const PIECE: u64 = 4096;

/// Checksums of a model's files, made when it is loaded, and the identity, made on first use.
#[derive(Debug)]
pub(super) struct Files {
    weights: String,
    adapters: String,
    overrides: String,
    identity: OnceLock<Vec<(&'static str, String)>>,
}

impl Files {
    pub(super) fn of(params: &ModelParams) -> Files {
        let adapters: Vec<String> =
            params.lora.iter().map(|lora| format!("{} at {}", sample(&lora.path), lora.scale)).collect();
        let overrides: Vec<String> =
            params.override_kv.iter().map(|(key, value)| format!("{key}: {value:?}")).collect();
        Files {
            weights: shards::of(&params.path).iter().map(|file| sample(file)).collect::<Vec<_>>().join(", "),
            adapters: adapters.join(", "),
            overrides: overrides.join(", "),
            identity: OnceLock::new(),
        }
    }

    pub(super) fn identity(&self, model: &Model) -> &[(&'static str, String)] {
        self.identity.get_or_init(|| {
            let vocab = model.vocab();
            let mut tokens = Checksum::default();
            for token in 0..Token::try_from(vocab.n_tokens()).unwrap_or(Token::MAX) {
                tokens.add(vocab.raw_text(token).as_bytes());
                tokens.add(&[0]);
            }
            vec![
                ("architecture", model.metadata("general.architecture").unwrap_or_default()),
                ("model", model.description()),
                ("parameters", model.n_params().to_string()),
                ("bytes", model.size().to_string()),
                ("layers", model.n_layer().to_string()),
                ("embedding", model.n_embd().to_string()),
                ("vocabulary", format!("{} tokens, {:016x}", vocab.n_tokens(), tokens.value())),
                ("weights", self.weights.clone()),
                ("adapters", self.adapters.clone()),
                ("override_kv", self.overrides.clone()),
            ]
        })
    }
}

/// The length of a file and the checksum of its samples. `unknown` if it cannot be read.
fn sample(path: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(path)?;
        let len = file.metadata()?.len();
        let mut sum = Checksum::default();
        let mut piece = Vec::new();
        for n in 0..PIECES {
            let at = len / PIECES * n;
            file.seek(SeekFrom::Start(at))?;
            piece.clear();
            (&mut file).take(PIECE).read_to_end(&mut piece)?;
            sum.add(&piece);
        }
        Ok(format!("{len} bytes, {:016x}", sum.value()))
    };
    read().unwrap_or_else(|_| "unknown".into())
}
