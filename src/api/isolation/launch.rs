//! Finds and starts the program `foredraft-engine`.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::settings::IsolationSettings;
use crate::error::{Code, Error, Result};

/// The name of the program.
const PROGRAM: &str = "foredraft-engine";
/// The environment variable with its path.
const VARIABLE: &str = "FOREDRAFT_ENGINE";

/// The engine's process, and this end of the connection to it.
pub(super) struct EngineProcess {
    pub(super) child: Child,
    pub(super) stream: UnixStream,
}

/// Starts the program. It finds the gate at which its threads sleep in its standard output, on which it writes nothing. It ends when the
/// calling thread ends, or when the connection is closed.
///
/// # Errors
/// It is not there, or cannot be started.
pub(super) fn start(settings: &IsolationSettings, pauses: &File) -> Result<EngineProcess> {
    // A host may have gone to another folder since.
    let folder = settings.folder.as_deref().filter(|folder| folder.is_dir());
    let program = find(settings.path.as_deref(), folder)?;
    let failed = |error| Error::exhausted(format!("isolate: {} cannot be started: {error}", program.display()));
    let (here, there) = UnixStream::pair().map_err(failed)?;
    let pauses = pauses.try_clone().map_err(failed)?;
    let mut command = Command::new(&program);
    command.args(settings.arguments()).arg(std::process::id().to_string());
    // A group of its own: a Ctrl-C in the terminal is the host's.
    command.stdin(OwnedFd::from(there)).stdout(pauses).stderr(Stdio::piped()).process_group(0);
    if let Some(folder) = folder {
        command.current_dir(folder);
    }
    let child = command.spawn().map_err(failed)?;
    Ok(EngineProcess { child, stream: here })
}

/// The program: `isolate_path`, else the environment variable's, else the one beside the library or the host's program. Relative paths are
/// relative to `folder`.
fn find(given: Option<&Path>, folder: Option<&Path>) -> Result<PathBuf> {
    let existing = |path: &Path| {
        let path = folder.map_or_else(|| path.to_owned(), |folder| folder.join(path));
        path.is_file().then_some(path)
    };
    if let Some(path) = given {
        return existing(path)
            .ok_or_else(|| Error::new(Code::NotFound, format!("isolate_path: there is no file {}", path.display())));
    }
    if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return existing(&path)
            .ok_or_else(|| Error::new(Code::NotFound, format!("{VARIABLE}: there is no file {}", path.display())));
    }
    find_beside(library_file(), std::env::current_exe())
}

/// The program beside the library or the host's program.
fn find_beside(library: io::Result<Option<PathBuf>>, program: io::Result<PathBuf>) -> Result<PathBuf> {
    let (library, unknown) = library.map_or_else(|error| (None, Some(error)), |library| (library, None));
    let files = [library, program.ok()];
    let folders: Vec<PathBuf> = files.iter().flatten().filter_map(|file| Some(file.parent()?.to_owned())).collect();
    // Beside it; where `make install` puts programs; and for tests, whose programs are one folder deeper.
    let places = ["", "../bin", "../libexec", ".."];
    let mut candidates = folders.iter().flat_map(|folder| places.map(|place| folder.join(place).join(PROGRAM)));
    candidates.find(|path| path.is_file()).ok_or_else(|| {
        let folders: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        match unknown {
            Some(error) => Error::exhausted(format!("isolate: the folder of the library cannot be found: {error}")),
            None => Error::new(
                Code::NotFound,
                format!("isolate: {PROGRAM} is not in {}; set isolate_path, or {VARIABLE}", folders.join(" nor ")),
            ),
        }
    })
}

/// The file that this code is in: the shared library, or the program that contains it. `None`: it is in no file.
///
/// # Errors
/// The system does not say, for example because it has no more descriptors.
fn library_file() -> io::Result<Option<PathBuf>> {
    let here = library_file as fn() -> io::Result<Option<PathBuf>> as usize;
    let maps = BufReader::new(File::open("/proc/self/maps")?);
    let contains = |line: &str| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        let address = |text: &str| usize::from_str_radix(text, 16).ok();
        let path = line.get(line.find('/')?..)?;
        (address(from)?..address(to)?).contains(&here).then(|| PathBuf::from(path))
    };
    Ok(maps.lines().map_while(io::Result::ok).find_map(|line| contains(&line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_of_this_code_is_found() {
        let program = std::env::current_exe().and_then(|path| path.canonicalize()).expect("a program");
        let found = library_file().expect("descriptors").and_then(|path| path.canonicalize().ok());
        assert_eq!(found, Some(program));
    }

    #[test]
    fn lack_of_descriptors_is_not_taken_for_a_missing_program() {
        let nowhere = || Ok(PathBuf::from("/no/such/program"));
        let error = find_beside(Err(io::Error::from_raw_os_error(24)), nowhere()).expect_err("no folder");
        assert_eq!(error.code(), Code::ResourceExhausted);
        assert!(error.message().contains("Too many open files"), "{error}");
        let error = find_beside(Ok(None), nowhere()).expect_err("missing");
        assert_eq!(error.code(), Code::NotFound);
    }

    #[test]
    fn missing_program_is_named() {
        let error = find(Some(Path::new("/no/such/engine")), None).expect_err("missing");
        assert_eq!((error.code(), error.message()), (Code::NotFound, "isolate_path: there is no file /no/such/engine"));
    }
}
