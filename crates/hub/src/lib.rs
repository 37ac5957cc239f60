//! Downloads of models from Hugging Face's hub, or from an address, into the hub's own cache: `models--owner--name` with `blobs`, `snapshots`
//! and `refs`. The library itself has no network; the program `foredraft-get` and the feature `hub` of the crate `foredraft` use this.
//!
//! - `place`: what a reference names, and the environment variables.
//! - `choice`: the files that it means, by llama.cpp's rules.
//! - `client`: requests, and what a repository has.
//! - `transfer`: one file, resumed and checked.

mod choice;
mod client;
mod place;
mod transfer;

use std::path::PathBuf;

use foredraft_base::error::Result;

pub use self::choice::Beside;
use self::client::HubClient;
use self::place::HubPlace;
pub use self::transfer::Receive;

/// The paths of a downloaded model, under their keys in `foredraft_load`: `model`, and of what lies beside it `model_draft` and `mmproj`.
pub type ModelPaths = Vec<(&'static str, PathBuf)>;

/// Whether a model is one to download: `hf:owner/name[:quant]`, or an address.
pub fn is_remote(model: &str) -> bool {
    ["hf:", "http://", "https://"].iter().any(|prefix| model.starts_with(prefix))
}

/// Downloads `owner/name[@revision][:quant]`, `owner/name/file.gguf` or an address into Hugging Face's cache, or finds it there. Without a
/// quantization it takes Q4_K_M, else Q8_0, else the first model, as llama.cpp does. `HF_HOME`, `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_TOKEN` and
/// `HF_HUB_OFFLINE` are obeyed.
///
/// # Errors
/// `InvalidRequest`: the reference is malformed. `NotFound`: there is no such repository or file. `ModelError`: the server refused, sent other
/// bytes than its list says, or could not be reached; or the cache cannot be written.
pub fn download(reference: &str, beside: Beside, receive: Receive) -> Result<ModelPaths> {
    let place = HubPlace::parse(reference)?;
    let client = HubClient::new();
    let (commit, files) = client.files(&place)?;
    let chosen = choice::chosen(&place, &files, beside)?;
    let snapshot = place.folder().join("snapshots").join(&commit);
    for file in chosen.iter().flat_map(|(_, parts)| parts) {
        transfer::fetch(&client, &place, file, &snapshot, receive)?;
    }
    if files.iter().any(|file| file.blob.is_some()) {
        transfer::write_ref(&place, &commit)?;
    }
    let first = |(key, parts): (&'static str, Vec<&choice::HubFile>)| Some((key, snapshot.join(&parts.first()?.path)));
    Ok(chosen.into_iter().filter_map(first).collect())
}
