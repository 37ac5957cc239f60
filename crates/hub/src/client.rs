//! Requests to the hub, and the files that a repository has.

use std::path::Path;
use std::thread;
use std::time::Duration;

use foredraft_base::error::{Code, Error, Result};
use serde_json::Value;
use ureq::config::RedirectAuthHeaders;
use ureq::http::Response;
use ureq::{Agent, Body};

use crate::choice::HubFile;
use crate::place::{self, HubPlace};

/// Attempts in a row that bring nothing before a download fails.
pub(crate) const ATTEMPTS: u32 = 4;
/// How long an answer may be silent at its beginning.
const SILENT: Duration = Duration::from_secs(60);
/// How long a body may take. A download goes on with the next request, so this ends connections that are silent.
const BODY: Duration = Duration::from_secs(300);

/// The connections to servers, and the token.
pub(crate) struct HubClient {
    agent: Agent,
    token: Option<String>,
    endpoint: String,
}

/// Why a request has no usable answer.
pub(crate) enum HubFailure {
    /// The server may answer later, or cannot be reached.
    Passing(String),
    /// The server refuses.
    Final(Error),
}

impl HubClient {
    pub(crate) fn new() -> HubClient {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_connect(Some(SILENT))
            .timeout_recv_response(Some(SILENT))
            .timeout_recv_body(Some(BODY))
            .user_agent("foredraft")
            .build();
        HubClient { agent: config.into(), token: place::token(), endpoint: place::endpoint() }
    }

    /// Requests an address, of a file from byte `from` on.
    pub(crate) fn ask(
        &self,
        place: &HubPlace,
        url: &str,
        is_head: bool,
        from: u64,
    ) -> Result<Response<Body>, HubFailure> {
        let mut request = if is_head { self.agent.head(url) } else { self.agent.get(url) };
        if from > 0 {
            request = request.header("Range", format!("bytes={from}-"));
        }
        let is_ours = url.strip_prefix(&*self.endpoint).is_some_and(|rest| rest.starts_with('/'));
        if let Some(token) = self.token.as_ref().filter(|_| is_ours) {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let answer = request.call().map_err(|error| HubFailure::Passing(error.to_string()))?;
        let (status, host) = (answer.status().as_u16(), host(&place.endpoint));
        let what = format!("{}: {host} answered {status}", place.name);
        match status {
            200..300 => Ok(answer),
            408 | 429 | 500.. => Err(HubFailure::Passing(what)),
            401 | 403 => Err(HubFailure::Final(Error::model(format!(
                "{what}. It is private, gated or not there: HF_TOKEN gives a token of an account that has access."
            )))),
            _ => Err(HubFailure::Final(Error::new(
                Code::NotFound,
                format!("{what}: there is no such repository, revision or file"),
            ))),
        }
    }

    /// A commit and its files: those of the hub, or without a connection those of the cache.
    pub(crate) fn files(&self, place: &HubPlace) -> Result<(String, Vec<HubFile>)> {
        let why = if place::is_offline() {
            "HF_HUB_OFFLINE is set".to_owned()
        } else {
            match self.listed(place) {
                Ok(found) => return Ok(found),
                Err(HubFailure::Final(error)) => return Err(error),
                Err(HubFailure::Passing(why)) => format!("{} cannot be reached: {why}", place.endpoint),
            }
        };
        let given = std::fs::read_to_string(place.folder().join("refs").join(&place.revision));
        let commit = given.map_or_else(|_| place.revision.clone(), |commit| commit.trim().to_owned());
        let mut files = Vec::new();
        if is_hex(&commit, &[40]) {
            let folder = place.folder().join("snapshots").join(&commit);
            collect(&folder, &folder, &mut files);
            files.sort_by(|one, other| one.path.cmp(&other.path));
        }
        if files.is_empty() {
            let message = format!("{} is not in {}, and {why}", place.name, place::cache().display());
            return Err(Error::new(Code::NotFound, message));
        }
        Ok((commit, files))
    }

    /// The files that the server has.
    fn listed(&self, place: &HubPlace) -> Result<(String, Vec<HubFile>), HubFailure> {
        let malformed = |what: String| HubFailure::Final(Error::model(what));
        if !place.is_repository() {
            let head = self.ask_patiently(place, &place.endpoint, true)?;
            let field = |name: &str| head.headers().get(name).and_then(|value| value.to_str().ok());
            let size = field("Content-Length").and_then(|size| size.parse().ok());
            let path = place.path.clone().filter(|path| is_safe(path));
            let (Some(size), Some(path)) = (size, path) else {
                return Err(malformed(format!("{}: the server tells no size of a file", place.endpoint)));
            };
            let blob = place::sum(&format!("{} {} {size}", place.endpoint, field("ETag").unwrap_or_default()));
            return Ok((
                place.revision.clone(),
                vec![HubFile { path, size, blob: Some(blob), url: place.endpoint.clone() }],
            ));
        }
        let HubPlace { endpoint, name, revision, .. } = place;
        let url = format!("{endpoint}/api/models/{name}/revision/{}?blobs=true", quoted(revision));
        let mut answer = self.ask_patiently(place, &url, false)?;
        let text = answer.body_mut().read_to_string().map_err(|error| HubFailure::Passing(error.to_string()))?;
        let listing: Value = serde_json::from_str(&text).unwrap_or_default();
        read_listing(place, &listing)
            .ok_or_else(|| malformed(format!("{endpoint} gave no list of the files of {name}")))
    }

    /// Requests an address; a busy server is asked again.
    fn ask_patiently(&self, place: &HubPlace, url: &str, is_head: bool) -> Result<Response<Body>, HubFailure> {
        for attempt in 1..ATTEMPTS {
            match self.ask(place, url, is_head, 0) {
                Err(HubFailure::Passing(why)) if why.contains(" answered ") => thread::sleep(pause(attempt)),
                other => return other,
            }
        }
        self.ask(place, url, is_head, 0)
    }
}

/// The time before the attempt after so many failures.
pub(crate) fn pause(failures: u32) -> Duration {
    Duration::from_millis(100 * 4_u64.pow(failures))
}

fn read_listing(place: &HubPlace, listing: &Value) -> Option<(String, Vec<HubFile>)> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let commit = text(listing.get("sha")).filter(|commit| is_hex(commit, &[40]))?;
    let mut files = Vec::new();
    for entry in listing.get("siblings")?.as_array()? {
        let path = text(entry.get("rfilename"))?;
        let sum = text(entry.pointer("/lfs/sha256")).or_else(|| text(entry.get("blobId")));
        let (blob, size) = (sum.filter(|sum| is_hex(sum, &[40, 64]))?, entry.get("size")?.as_u64()?);
        if path.ends_with(".gguf") && is_safe(&path) {
            let url = format!("{}/{}/resolve/{commit}/{}", place.endpoint, place.name, quoted(&path));
            files.push(HubFile { path, size, blob: Some(blob), url });
        }
    }
    Some((commit, files))
}

/// Adds the models in a folder of the cache.
fn collect(root: &Path, folder: &Path, files: &mut Vec<HubFile>) {
    for path in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            collect(root, &path, files);
        } else if let Some(inner) = path.strip_prefix(root).ok().and_then(Path::to_str)
            && inner.ends_with(".gguf")
            && path.exists()
        {
            files.push(HubFile { path: inner.replace('\\', "/"), ..HubFile::default() });
        }
    }
}

fn host(endpoint: &str) -> &str {
    endpoint.split('/').nth(2).unwrap_or(endpoint)
}

fn is_hex(text: &str, lengths: &[usize]) -> bool {
    lengths.contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether a path stays inside its folder, on every system.
fn is_safe(path: &str) -> bool {
    !path.contains(|c: char| c == '\\' || c == ':' || c.is_ascii_control())
        && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

fn quoted(path: &str) -> String {
    let is_kept = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte);
    path.bytes().map(|byte| if is_kept(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}
