//! The transfer of one file into the cache.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;

use foredraft_base::error::{Error, Result};
use sha2::{Digest, Sha256};

use crate::choice::HubFile;
use crate::client::{ATTEMPTS, HubClient, HubFailure, pause};
use crate::place::{HubPlace, hex};

/// Is told each file's name, the bytes of it that are there, and its size. An error ends the download.
pub type Receive<'a> = &'a mut dyn FnMut(&str, u64, u64) -> Result<()>;

const BLOCK: usize = 1 << 18;

/// Downloads a file, checks its sum and links it into the snapshot.
pub(crate) fn fetch(
    client: &HubClient,
    place: &HubPlace,
    file: &HubFile,
    snapshot: &Path,
    receive: Receive,
) -> Result<()> {
    let target = snapshot.join(&file.path);
    let Some(name) = file.blob.as_ref().filter(|_| !target.exists()) else { return Ok(()) };
    let blobs = place.folder().join("blobs");
    let (blob, partial) = (blobs.join(name), blobs.join(format!("{name}.foredraft.incomplete")));
    let written = |error: io::Error| unwritable(place, &error);
    fs::create_dir_all(&blobs)
        .and_then(|()| fs::create_dir_all(target.parent().unwrap_or(snapshot)))
        .map_err(written)?;
    if !blob.exists() {
        let sum = received(client, place, file, &partial, receive)?;
        if name.len() == 64 && sum != *name {
            // Another process may have deleted it.
            let _ = fs::remove_file(&partial);
            return Err(Error::model(format!(
                "{}: what {} sent has not the SHA-256 {name}, and was deleted",
                file.path, file.url
            )));
        }
        match fs::rename(&partial, &blob) {
            // Another process was first.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            renamed => renamed.map_err(written)?,
        }
    }
    let ups = file.path.matches('/').count() + 2;
    let link: PathBuf = std::iter::repeat_n("..", ups).chain(["blobs", name]).collect();
    match symlink(&link, &target) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        // Windows without the right to make links. Hugging Face's own program does the same.
        Err(_) => fs::rename(&blob, &target).map_err(written),
        Ok(()) => Ok(()),
    }
}

/// Writes which commit a revision is.
pub(crate) fn write_ref(place: &HubPlace, commit: &str) -> Result<()> {
    let refs = place.folder().join("refs");
    let written = fs::create_dir_all(&refs).and_then(|()| fs::write(refs.join(&place.revision), commit));
    written.map_err(|error| unwritable(place, &error))
}

#[cfg(unix)]
fn symlink(link: &Path, target: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(link, target)
}

#[cfg(windows)]
fn symlink(link: &Path, target: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(link, target)
}

fn unwritable(place: &HubPlace, error: &io::Error) -> Error {
    Error::model(format!(
        "{} cannot be written: {error}. HF_HUB_CACHE names another folder for downloads.",
        place.folder().display()
    ))
}

/// Completes a partial file, and returns its SHA-256. Processes that do so at once write the same bytes at the same places, each from an end
/// of the file on. So they need no lock, and a file never has a gap.
fn received(client: &HubClient, place: &HubPlace, file: &HubFile, partial: &Path, receive: Receive) -> Result<String> {
    let written = |error: io::Error| unwritable(place, &error);
    let mut out =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(partial).map_err(written)?;
    let mut at = out.seek(SeekFrom::End(0)).map_err(written)?;
    if at > file.size {
        out.set_len(0).map_err(written)?;
        at = 0;
    }
    let mut failures = 0;
    while at < file.size {
        let before = at;
        let why = match client.ask(place, &file.url, false, at) {
            Ok(answer) => {
                if answer.status().as_u16() != 206 {
                    at = 0;
                }
                out.seek(SeekFrom::Start(at)).map_err(written)?;
                let mut body = answer.into_body();
                copied(&mut body.as_reader(), &mut out, &mut at, place, file, receive)?
            }
            Err(HubFailure::Passing(why)) => why,
            Err(HubFailure::Final(error)) => return Err(error),
        };
        failures = if at > before { 0 } else { failures + 1 };
        if failures == ATTEMPTS {
            return Err(Error::model(format!(
                "{}: {at} of {} bytes are there, then {} sent no more: {why}. The next attempt goes on from there.",
                file.path, file.size, file.url
            )));
        }
        if failures > 0 {
            thread::sleep(pause(failures));
        }
    }
    out.seek(SeekFrom::Start(0)).map_err(written)?;
    let (mut digest, mut block) = (Sha256::new(), vec![0; BLOCK]);
    loop {
        match out.read(&mut block).map_err(written)? {
            0 => return Ok(hex(&digest.finalize())),
            n => digest.update(block.get(..n).unwrap_or_default()),
        }
    }
}

/// Copies an answer up to its end or the file's, and returns why it ended.
fn copied(
    body: &mut dyn Read,
    out: &mut File,
    at: &mut u64,
    place: &HubPlace,
    file: &HubFile,
    receive: Receive,
) -> Result<String> {
    let mut block = vec![0; BLOCK];
    while *at < file.size {
        let n = match body.read(&mut block) {
            Ok(0) => return Ok("the connection was cut".to_owned()),
            Ok(n) => n.min(usize::try_from(file.size - *at).unwrap_or(n)),
            Err(error) => return Ok(error.to_string()),
        };
        out.write_all(block.get(..n).unwrap_or_default()).map_err(|error| unwritable(place, &error))?;
        *at += n as u64;
        receive(&file.path, *at, file.size)?;
    }
    Ok(String::new())
}
