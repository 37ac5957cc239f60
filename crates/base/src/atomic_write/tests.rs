use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

#[cfg(unix)]
use super::open;
use super::{WriterProcess, failed, write};
use crate::error::Code;

/// The names of the entries of a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// After a failed write the old file is unchanged and no temporary file is left.
#[test]
fn failed_write_leaves_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    for before in [None, Some("before")] {
        if let Some(before) = before {
            fs::write(&path, before).unwrap();
        }
        let error = write(&path, |file| {
            file.write_all(b"half")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        });
        let error = error.expect_err("the disk was full");
        assert_eq!(error.code(), Code::ResourceExhausted);
        assert!(error.message().contains("file: "), "{error}");
        assert_eq!(fs::read_to_string(&path).ok().as_deref(), before);
        assert_eq!(names(folder.path()).len(), usize::from(before.is_some()));
    }
    write(&path, |file| file.write_all(b"after")).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "after");
    assert_eq!(names(folder.path()), ["file"]);
}

/// A killed process leaves its temporary file, and another process may get its id.
#[test]
fn leftover_temporary_files_are_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    // The temporary names of the next writers; other tests may use some of them.
    let next = |path: &std::path::Path| super::temporary_path(path).unwrap();
    let number: u64 = next(&path).to_string_lossy().rsplit(['-', '.']).nth(1).unwrap().parse().unwrap();
    for number in number + 1..number + 200 {
        fs::write(folder.path().join(format!(".file.{}-{number}.part", WriterProcess::this())), "left").unwrap();
    }
    write(&path, |file| file.write_all(b"whole")).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "whole");
    assert_eq!(names(folder.path()).len(), 200);
}

/// Concurrent writers have their own temporary files; the last rename wins.
#[test]
fn concurrent_writers_do_not_interfere() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    write(&path, |outer| {
        outer.write_all(b"out")?;
        write(&path, |inner| inner.write_all(b"inner")).map_err(|error| io::Error::other(error.to_string()))?;
        assert_eq!(fs::read_to_string(&path)?, "inner");
        outer.write_all(b"er")
    })
    .unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "outer");
    assert_eq!(names(folder.path()), ["file"]);
}

#[test]
fn invalid_paths_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("file"), "").unwrap();
    let long = "n".repeat(300);
    for (destination, code) in [
        (folder.path().to_path_buf(), Code::InvalidRequest),
        (path("none/file"), Code::NotFound),
        (path("file/file"), Code::InvalidRequest),
        (path(&long), Code::InvalidRequest),
        ("/".into(), Code::InvalidRequest),
        ("".into(), Code::InvalidRequest),
        ("..".into(), Code::InvalidRequest),
    ] {
        let error = write(&destination, |_| Ok(())).expect_err("not a valid path for a file");
        // Windows says of some that the path is not found.
        assert!(error.code() == code || cfg!(windows) && error.code() == Code::NotFound, "{error}");
        assert!(error.message().starts_with(&format!("{}: ", destination.display())), "{error}");
    }
    assert_eq!(names(folder.path()), ["file"]);
    // The longest name that file systems allow.
    let longest = path(&"n".repeat(255));
    write(&longest, |_| Ok(())).unwrap();
    assert!(longest.is_file());
}

#[cfg(unix)]
#[test]
fn symlinks_and_permissions_are_kept() {
    use std::os::unix::fs::{PermissionsExt, symlink};

    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("file"), folder.path().join("link"));
    fs::write(&file, "before").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    symlink("file", &link).unwrap();
    write(&link, |file| file.write_all(b"after")).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "after");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    // A device is neither read nor replaced.
    let device = std::path::Path::new("/dev/null");
    for result in [write(device, |_| Ok(())), open(device).map(drop)] {
        assert!(result.expect_err("a device").message().contains("/dev/null: is not a regular file"));
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o0)).unwrap();
    match open(&file) {
        Ok(_) => {} // root may read everything
        Err(error) => assert_eq!(error.code(), Code::InvalidRequest, "{error}"),
    }
}

/// Temporary files of processes that have ended are removed; those of running ones, and files of others, are not.
#[cfg(target_os = "linux")]
#[test]
fn temporary_files_of_killed_processes_are_removed() {
    use std::process::Command;

    let folder = tempfile::tempdir().unwrap();
    let mut running = Command::new("sleep").arg("60").spawn().unwrap();
    let mut killed = Command::new("sleep").arg("60").spawn().unwrap();
    let (alive, dead) = (WriterProcess::of(running.id()).unwrap(), WriterProcess::of(killed.id()).unwrap());
    let restarted = WriterProcess { start: alive.start + 1, ..alive };
    let elsewhere = WriterProcess { machine: alive.machine ^ 1, ..dead };
    killed.kill().unwrap();
    // It is not waited for, so it becomes a zombie.
    let state = || fs::read_to_string(format!("/proc/{}/stat", killed.id())).unwrap();
    while !state().contains(") Z ") {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let name = |writer: WriterProcess, number: u32| format!(".n.bin.{writer}-{number}.part");
    let make = |name: &str| fs::write(folder.path().join(name), "half").unwrap();
    let kept = [
        name(alive, 0),
        name(elsewhere, 0),
        name(WriterProcess::this(), 1_000_000_000),
        ".other.part".to_owned(),
        format!("n.{dead}-0.part"),
        format!(".n.{dead}-0.parts"),
        format!(".n.{dead}-x.part"),
        ".n.7-3.part".to_owned(),
    ];
    let stale = [name(dead, 0), name(dead, 12), name(restarted, 0), format!(".{dead}-0.part")];
    kept.iter().chain(&stale).for_each(|name| make(name));
    // A zombie has ended as well.
    write(&folder.path().join("file"), |file| file.write_all(b"whole")).unwrap();
    let left = names(folder.path());
    for name in &kept {
        assert!(left.contains(name), "{name}: {left:?}");
    }
    assert_eq!(left.len(), kept.len() + 1, "{left:?}");
    // A temporary file of another machine is removed after a day.
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(25 * 3600);
    let path = folder.path().join(name(elsewhere, 0));
    fs::File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
    write(&folder.path().join("file"), |file| file.write_all(b"whole")).unwrap();
    assert!(!path.exists());
    killed.wait().unwrap();
    running.kill().unwrap();
    running.wait().unwrap();
}

#[test]
fn full_disks_and_used_up_files_are_lacking_resources() {
    let code = |error: io::Error| failed(Path::new("a"), &error).code().as_str();
    for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::FileTooLarge, ErrorKind::OutOfMemory] {
        assert_eq!(code(kind.into()), "resource_exhausted", "{kind}");
    }
    #[cfg(unix)]
    assert_eq!(code(io::Error::from_raw_os_error(24)), "resource_exhausted");
    assert_eq!(code(ErrorKind::NotFound.into()), "not_found");
    assert_eq!(code(ErrorKind::PermissionDenied.into()), "invalid_request");
}
