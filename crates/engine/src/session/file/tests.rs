use std::path::PathBuf;

use super::*;
use foredraft_base::error::Code;

/// A temporary folder, removed at the end of the test.
struct TempFolder(PathBuf);

impl TempFolder {
    fn new(name: &str) -> TempFolder {
        let folder = std::env::temp_dir().join(format!("foredraft-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("the temporary folder is writable");
        TempFolder(folder)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("it is there");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn snapshot(n: u8) -> Snapshot {
    Snapshot {
        identity: vec![("model".into(), format!("model {n}")), ("adapters".into(), String::new())],
        tokens: vec![1, 0, i32::MAX, i32::from(n)],
        blocks: usize::from(n),
        spans: Default::default(),
        state: (0..100 + n).collect(),
        checkpoints: [1, 3].map(|len| (len, Arc::new(vec![n; len]))).to_vec(),
    }
}

fn sessions() -> [Session; 2] {
    let seed = Some(SeedOrigin { seed: 7, origin: -3 });
    [
        Session { target: snapshot(1), draft: None, seed: None, lora: Vec::new(), media: Vec::new() },
        Session { target: snapshot(2), draft: Some(snapshot(3)), seed, lora: vec![1.0, -0.5], media: Vec::new() },
    ]
}

fn error_message(path: &Path) -> String {
    Session::read(path).expect_err("it is damaged").message().to_owned()
}

#[test]
fn written_sessions_can_be_read() {
    let folder = TempFolder::new("written");
    let path = folder.file("a.session");
    for session in sessions() {
        let size = session.write(&path).expect("writable");
        assert_eq!(fs::metadata(&path).expect("it is there").len(), size);
        assert_eq!(Session::read(&path), Ok(session));
    }
    assert_eq!(folder.names(), ["a.session"], "nothing is left beside it");
}

#[test]
fn pictures_are_written_and_impossible_ones_refused() {
    let folder = TempFolder::new("pictures");
    let path = folder.file("a.session");
    let [mut session, _] = sessions();
    session.target.tokens = vec![1, -5, -6, -7, 2];
    let span = RowSpan { start: 1, rows: 3, positions: 2 };
    session.target.spans = Arc::new(vec![span]);
    let medium = SavedMedia { first: -4, rows: 4, hash: [7; 32] };
    session.media = vec![medium.clone()];
    session.write(&path).expect("writable");
    assert_eq!(Session::read(&path).as_ref(), Ok(&session));
    for media in [
        vec![],
        vec![SavedMedia { first: -6, ..medium.clone() }],
        vec![SavedMedia { rows: 3, ..medium.clone() }],
        vec![medium.clone(), SavedMedia { rows: -1, ..medium.clone() }],
        vec![medium.clone(), SavedMedia { rows: i32::MAX, ..medium.clone() }],
        vec![medium.clone(), SavedMedia { first: i32::MIN, ..medium.clone() }],
        vec![medium.clone(), SavedMedia { first: 5, ..medium.clone() }],
    ] {
        let written = Session { media, ..session.clone() }.write(&path);
        assert!(written.and_then(|_| Session::read(&path)).is_err());
    }
    for spans in [
        vec![RowSpan { start: 0, ..span }],
        vec![RowSpan { rows: 4, ..span }],
        vec![RowSpan { rows: usize::MAX, ..span }],
        vec![RowSpan { positions: 0, ..span }],
        vec![RowSpan { positions: 4, ..span }],
        vec![span, span],
    ] {
        let target = Snapshot { spans: Arc::new(spans), ..session.target.clone() };
        let written = Session { target, ..session.clone() }.write(&path);
        assert!(written.and_then(|_| Session::read(&path)).is_err());
    }
}

#[test]
fn checkpoints_out_of_order_are_refused() {
    let folder = TempFolder::new("order");
    let path = folder.file("a.session");
    let [mut session, _] = sessions();
    for places in [&[2, 1][..], &[0], &[5], &[1, 1]] {
        session.target.checkpoints = places.iter().map(|len| (*len, Arc::default())).collect();
        session.write(&path).expect("writable");
        assert!(error_message(&path).contains("the tokens or checkpoints are invalid"), "{places:?}");
    }
}

#[test]
fn every_damaged_byte_is_reported_with_its_offset() {
    let folder = TempFolder::new("damaged");
    let path = folder.file("a.session");
    for session in sessions() {
        session.write(&path).expect("writable");
        let whole = fs::read(&path).expect("it is there");
        let damaged = folder.file("damaged");
        for at in 0..whole.len() {
            for change in [1, 0x80, 0xFF] {
                let mut bytes = whole.clone();
                bytes[at] ^= change;
                fs::write(&damaged, &bytes).expect("writable");
                let message = error_message(&damaged);
                let byte = message.split("byte ").nth(1).and_then(|rest| rest.split(':').next()?.parse::<usize>().ok());
                assert!(byte.is_some_and(|byte| byte <= at), "{at} {change}: {message}");
            }
        }
    }
}

#[test]
fn truncated_and_extended_files_are_errors() {
    let folder = TempFolder::new("cut");
    let path = folder.file("a.session");
    let [_, session] = sessions();
    session.write(&path).expect("writable");
    let whole = fs::read(&path).expect("it is there");
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).expect("writable");
        assert!(error_message(&path).contains("byte "), "{len}");
    }
    fs::write(&path, [whole.as_slice(), &[0]].concat()).expect("writable");
    assert!(error_message(&path).contains("byte 24"));
    // A huge file is rejected by its header, without reading it.
    File::options().write(true).open(&path).and_then(|file| file.set_len(1 << 40)).expect("sparse files");
    assert!(error_message(&path).contains("byte 24"));
}

/// Writes `session` with other bytes at `at` in its header or sections, and a correct header checksum.
fn forged(session: &Session, path: &Path, at: usize, bytes: &[u8]) {
    session.write(path).expect("writable");
    let mut file = fs::read(path).expect("it is there");
    file[at..at + bytes.len()].copy_from_slice(bytes);
    let header = xxh3_64(&file[..HEADER - 8]).to_le_bytes();
    file[HEADER - 8..HEADER].copy_from_slice(&header);
    fs::write(path, file).expect("writable");
}

#[test]
fn other_versions_and_impossible_sizes_are_errors() {
    let folder = TempFolder::new("forged");
    let path = folder.file("a.session");
    let [session, _] = sessions();
    for (at, bytes, expected) in [
        (0, &b"GGUF"[..], "byte 0: this is not a session file"),
        (16, &2_u32.to_le_bytes(), "byte 16: the file has format 2, where this version reads 3"),
        (20, &0_u32.to_le_bytes(), "byte 20: 0 sections"),
        (20, &9_u32.to_le_bytes(), "byte 20: 9 sections"),
        (48, &u64::MAX.to_le_bytes(), "bytes long, but"),
    ] {
        forged(&session, &path, at, bytes);
        let message = error_message(&path);
        assert!(message.contains(expected) && message.contains("a.session"), "{message}");
    }
    let text = writer();
    session.write(&path).expect("writable");
    let mut file = fs::read(&path).expect("it is there");
    let (start, len) = (HEADER + 16, usize::from(u16::from_le_bytes([file[HEADER], file[HEADER + 1]])));
    let at = file.windows(text.len()).position(|part| part == text.as_bytes()).expect("the writer");
    file[at + 10] ^= 1;
    let sum = xxh3_64(&file[start..start + len]).to_le_bytes();
    file[HEADER + 8..start].copy_from_slice(&sum);
    fs::write(&path, file).expect("writable");
    assert!(error_message(&path).contains(&format!("this is {text}")), "{}", error_message(&path));
}

#[test]
fn paths_without_a_regular_file_are_errors() {
    let folder = TempFolder::new("none");
    for (path, code) in [
        (folder.file("missing"), Code::NotFound),
        (folder.0.clone(), Code::InvalidRequest),
        (PathBuf::from("/dev/zero"), Code::InvalidRequest),
    ] {
        assert_eq!(Session::read(&path).expect_err("no file").code(), code, "{}", path.display());
    }
}

#[test]
fn failed_write_leaves_existing_entries_unchanged() {
    let folder = TempFolder::new("unwritable");
    let [session, _] = sessions();
    let missing = folder.file("missing/a.session");
    assert!(session.write(&missing).is_err());
    let taken = folder.file("taken");
    fs::create_dir_all(&taken).expect("writable");
    let device = cfg!(unix).then(|| PathBuf::from("/dev/null"));
    for path in [Some(taken), device].into_iter().flatten() {
        let error = session.write(&path).expect_err("no file is there");
        assert_eq!(error.code(), Code::InvalidRequest);
        assert!(error.message().starts_with(&format!("{}: is ", path.display())), "{error}");
        assert!(!path.is_file());
    }
    assert_eq!(folder.names(), ["taken"], "nothing is left beside it");
}

#[cfg(unix)]
#[test]
fn writing_to_a_symlink_replaces_its_target() {
    let folder = TempFolder::new("link");
    let (real, link) = (folder.file("real"), folder.file("link"));
    fs::write(&real, b"old").expect("writable");
    std::os::unix::fs::symlink(&real, &link).expect("links can be made");
    let [session, _] = sessions();
    session.write(&link).expect("writable");
    assert_eq!(Session::read(&real), Ok(session));
    assert!(fs::symlink_metadata(&link).is_ok_and(|link| link.is_symlink()));
}

#[test]
fn rng_counter_continues_after_a_restore() {
    for (len, position) in [(10, 0), (41, 31), (5, 300)] {
        let origin = SeedOrigin::new(7, len, position);
        assert_eq!(origin.position(len), position);
        assert_eq!(origin.position(len + 3), position + 3);
    }
    assert_eq!(SeedOrigin { seed: 1, origin: 9 }.position(4), 0);
}
