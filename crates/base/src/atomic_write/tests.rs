use std::fs;
use std::io::{self, Write};
use std::path::Path;

use super::{open, write};
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
        assert_eq!(error.code(), Code::InvalidRequest);
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
        fs::write(folder.path().join(format!(".file.{}-{number}.part", std::process::id())), "left").unwrap();
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
        assert_eq!(error.code(), code, "{error}");
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
