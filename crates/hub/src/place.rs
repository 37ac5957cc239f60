//! The places of a model: in the hub, by what a reference names, and in the cache.

use std::env;
use std::path::PathBuf;

use foredraft_base::error::{Error, Result};
use sha2::{Digest, Sha256};

/// A repository and what is meant of it, or an address.
#[derive(Debug, PartialEq)]
pub(crate) struct HubPlace {
    /// `owner/name`; of an address that is not in a repository, the host.
    pub(crate) name: String,
    /// A branch, tag or commit; of an address, 40 digits of its SHA-256.
    pub(crate) revision: String,
    pub(crate) quant: Option<String>,
    pub(crate) path: Option<String>,
    /// The server; of an address that is not in a repository, the address.
    pub(crate) endpoint: String,
}

impl HubPlace {
    pub(crate) fn parse(reference: &str) -> Result<HubPlace> {
        let found = in_address(reference).or_else(|| in_repository(reference)).or_else(|| elsewhere(reference));
        found.ok_or_else(|| {
            Error::invalid(format!(
                "model: expected \"owner/name\", \"owner/name:Q4_K_M\", \"owner/name/file.gguf\" or an address, got {reference:?}"
            ))
        })
    }

    /// Whether it is in a repository, which has a list of files.
    pub(crate) fn is_repository(&self) -> bool {
        self.name.contains('/')
    }

    /// Its folder in the cache.
    pub(crate) fn folder(&self) -> PathBuf {
        cache().join(format!("models--{}", self.name.replace('/', "--")))
    }
}

/// `owner/name`, without what could lead out of a folder.
fn repository_name(text: &str) -> Option<String> {
    let is_name = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
            && !part.contains("..")
    };
    let (owner, name) = text.split_once('/')?;
    (is_name(owner) && is_name(name)).then(|| text.to_owned())
}

/// `[hf:]owner/name[@revision][:quant | /file.gguf]`
fn in_repository(reference: &str) -> Option<HubPlace> {
    let text = reference.strip_prefix("hf:").unwrap_or(reference);
    let is_word = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
    let behind_owner = text.find('/')? + 1;
    let end = text.get(behind_owner..)?.find('/').map(|at| behind_owner + at);
    let (head, path) =
        end.and_then(|end| text.split_at_checked(end)).map_or((text, None), |(head, path)| (head, path.get(1..)));
    let (head, quant) = head.split_once(':').map_or((head, None), |(head, quant)| (head, Some(quant)));
    let (name, revision) = head.split_once('@').unwrap_or((head, "main"));
    let is_valid = is_word(revision)
        && quant.is_none_or(is_word)
        && path.is_none_or(|path| quant.is_none() && path.ends_with(".gguf"));
    is_valid.then_some(())?;
    Some(HubPlace {
        name: repository_name(name)?,
        revision: revision.to_owned(),
        quant: quant.map(str::to_owned),
        path: path.map(str::to_owned),
        endpoint: endpoint(),
    })
}

/// `https://host/owner/name/resolve/revision/file`
fn in_address(reference: &str) -> Option<HubPlace> {
    let (address, _) = reference.split_once('?').unwrap_or((reference, ""));
    let (scheme, rest) = scheme(address)?;
    let mut parts = rest.splitn(6, '/');
    let (host, owner, name) = (parts.next()?, parts.next()?, parts.next()?);
    let (kind, revision, path) = (parts.next()?, parts.next()?, parts.next()?);
    matches!(kind, "resolve" | "blob").then_some(())?;
    Some(HubPlace {
        name: repository_name(&format!("{owner}/{name}"))?,
        revision: revision.to_owned(),
        quant: None,
        path: Some(unquoted(path)),
        endpoint: format!("{scheme}{host}"),
    })
}

/// Any other address. Each has a "commit" of its own.
fn elsewhere(reference: &str) -> Option<HubPlace> {
    let (_, rest) = scheme(reference)?;
    let (host, path) = rest.split_once('/')?;
    let file = path.split('?').next()?.rsplit('/').next().filter(|file| !file.is_empty())?;
    Some(HubPlace {
        name: host.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect(),
        revision: sum(reference),
        quant: None,
        path: Some(file.to_owned()),
        endpoint: reference.to_owned(),
    })
}

fn scheme(address: &str) -> Option<(&str, &str)> {
    ["https://", "http://"].iter().find_map(|scheme| Some((*scheme, address.strip_prefix(scheme)?)))
}

/// 40 digits of a text's SHA-256.
pub(crate) fn sum(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes())).chars().take(40).collect()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unquoted(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut parts = text.split('%');
    bytes.extend(parts.next().unwrap_or_default().bytes());
    for part in parts {
        match part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => bytes.extend(std::iter::once(byte).chain(part.bytes().skip(2))),
            None => bytes.extend(std::iter::once(b'%').chain(part.bytes())),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The folder of downloads.
pub(crate) fn cache() -> PathBuf {
    let hub = variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE"));
    hub.map_or_else(|| home().join("hub"), PathBuf::from)
}

fn home() -> PathBuf {
    let user = || env::home_dir().unwrap_or_default().join(".cache");
    let default = || variable("XDG_CACHE_HOME").map_or_else(user, PathBuf::from).join("huggingface");
    variable("HF_HOME").map_or_else(default, PathBuf::from)
}

/// The server of repositories.
pub(crate) fn endpoint() -> String {
    variable("HF_ENDPOINT").map_or("https://huggingface.co".to_owned(), |url| url.trim_end_matches('/').to_owned())
}

/// Whether the host wants no network.
pub(crate) fn is_offline() -> bool {
    variable("HF_HUB_OFFLINE").is_some_and(|it| ["1", "ON", "YES", "TRUE"].contains(&it.to_uppercase().as_str()))
}

/// The token of private repositories: the environment's, or the one that `hf auth login` saved.
pub(crate) fn token() -> Option<String> {
    let given = variable("HF_TOKEN").or_else(|| variable("HUGGING_FACE_HUB_TOKEN"));
    let saved = || {
        let path = variable("HF_TOKEN_PATH").map_or_else(|| home().join("token"), PathBuf::from);
        std::fs::read_to_string(path).ok()
    };
    given.or_else(saved).map(|token| token.trim().to_owned()).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_name_repositories_files_and_addresses() {
        let read = |text: &str| {
            let HubPlace { name, revision, quant, path, .. } = HubPlace::parse(text).ok()?;
            Some(format!("{name} {revision} {} {}", quant.unwrap_or_default(), path.unwrap_or_default()))
        };
        for (text, expected) in [
            ("a/b", "a/b main  "),
            ("hf:a/b-c.d:Q4_K_M", "a/b-c.d main Q4_K_M "),
            ("a/b@v1:Q8_0", "a/b v1 Q8_0 "),
            ("a/b/c/d.gguf", "a/b main  c/d.gguf"),
            ("https://x.org/a/b/resolve/main/c/d%20e.gguf?download=true", "a/b main  c/d e.gguf"),
        ] {
            assert_eq!(read(text).as_deref(), Some(expected), "{text}");
        }
        let elsewhere = HubPlace::parse("http://x.org:80/dir/file.gguf?x=1").expect("an address");
        assert_eq!((&*elsewhere.name, elsewhere.path.as_deref()), ("x.org-80", Some("file.gguf")));
        for text in [
            "",
            "a",
            "a/",
            "/b",
            "../b",
            "a/..",
            "a/b..",
            "a/b:",
            "a/b@",
            "a/b/c",
            "a/b:Q4/c.gguf",
            "ftp://a/b.gguf",
            "http://a",
            "http://a/",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
