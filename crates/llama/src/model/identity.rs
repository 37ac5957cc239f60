//! The identity of a model, for comparing it with the model of a saved session.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::OnceLock;

use xxhash_rust::xxh3::Xxh3;

use crate::ModelParams;
use crate::sources::gguf_source::{GgufSource, Stream};
use crate::sources::shards;

/// The number of samples of a file, evenly spaced, and their size in bytes. (Models of the same architecture differ in all weights.)
const PIECES: u64 = 64;
const PIECE: usize = 4096;

/// Checksums of a model's files, made when it is loaded, and the identity, made on first use.
#[derive(Debug)]
pub(crate) struct Files {
    weights: String,
    adapters: String,
    overrides: String,
    identity: OnceLock<Vec<(&'static str, String)>>,
}

impl Files {
    pub(crate) fn of(params: &ModelParams) -> Files {
        let adapters: Vec<String> =
            params.lora.iter().map(|lora| format!("{} at {}", sample_source(&lora.source), lora.scale)).collect();
        let overrides: Vec<String> =
            params.override_kv.iter().map(|(key, value)| format!("{key}: {value:?}")).collect();
        Files {
            weights: sample_source(&params.source),
            adapters: adapters.join(", "),
            overrides: overrides.join(", "),
            identity: OnceLock::new(),
        }
    }

    /// The identity of the model in these files: name and value of each property. `of_model`: the properties of the loaded model.
    pub(crate) fn identity(&self, of_model: impl FnOnce() -> Vec<(&'static str, String)>) -> &[(&'static str, String)] {
        self.identity.get_or_init(|| {
            let mut identity = of_model();
            identity.extend([
                ("weights", self.weights.clone()),
                ("adapters", self.adapters.clone()),
                ("override_kv", self.overrides.clone()),
            ]);
            identity
        })
    }
}

/// [`sample`] of a model's files, joined by commas.
pub(crate) fn sample_source(source: &GgufSource) -> String {
    match source {
        GgufSource::Path(path) => shards::of(path).iter().map(|file| sample_file(file)).collect::<Vec<_>>().join(", "),
        _ => Stream::open("model", source, false).map_or_else(
            |_| UNKNOWN.into(),
            |stream| {
                let read = |at, piece: &mut [u8]| Ok(stream.read_at(at, piece));
                sample(stream.len(), read).unwrap_or_else(|_| UNKNOWN.into())
            },
        ),
    }
}

/// The sample of a file that cannot be read.
const UNKNOWN: &str = "unknown";

/// A checksum of samples of a file.
fn sample_file(path: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(path)?;
        let len = file.metadata()?.len();
        sample(len, |at, piece| {
            file.seek(SeekFrom::Start(at))?;
            let mut n = 0;
            while let Some(rest @ [_, ..]) = piece.get_mut(n..) {
                match file.read(rest)? {
                    0 => break,
                    more => n += more,
                }
            }
            Ok(n)
        })
    };
    read().unwrap_or_else(|_| UNKNOWN.into())
}

/// The length of a file and the checksum of its samples. It does not depend on the source of the file.
fn sample(len: u64, mut read: impl FnMut(u64, &mut [u8]) -> std::io::Result<usize>) -> std::io::Result<String> {
    let mut sum = Xxh3::new();
    let mut piece = [0; PIECE];
    for n in 0..PIECES {
        let read = read(len / PIECES * n, &mut piece)?;
        sum.update(piece.get(..read).unwrap_or_default());
    }
    Ok(format!("{len} bytes, {:016x}", sum.digest()))
}
