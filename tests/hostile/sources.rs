//! Models from elsewhere: a part of an open file, and memory. The completion is that of the path; whatever else is passed is an
//! error, and the process goes on.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};

use serde_json::{Value, json};

use crate::c_api::{assert_works, call, command, exclusive, load, load_async, model, status, unload, wait_until};

/// A game's file with both models in it, at any byte, between other data.
struct Pak {
    file: File,
    target: (usize, usize),
    draft: (usize, usize),
    path: std::path::PathBuf,
}

impl Pak {
    fn new(name: &str) -> Pak {
        let models = ["target", "draft"].map(|name| std::fs::read(model(name)).expect("a shipped model"));
        let mut bytes = vec![b'x'; 4096];
        let target = (bytes.len(), models[0].len());
        bytes.extend(&models[0]);
        bytes.extend(b"level 1: 13 bytes and then the draft");
        let draft = (bytes.len(), models[1].len());
        bytes.extend(&models[1]);
        bytes.extend([b'y'; 9000]);
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, &bytes).expect("target/ is writable");
        Pak { file: File::open(&path).expect("it was written"), target, draft, path }
    }

    fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    fn part(&self, (offset, length): (usize, usize)) -> Value {
        json!({"fd": self.fd(), "offset": offset, "length": length})
    }
}

fn in_memory(bytes: &[u8]) -> Value {
    json!({"address": format!("{:p}", bytes.as_ptr()), "length": bytes.len()})
}

/// A completion by both models.
fn completion() -> Value {
    let request = json!({"prompt": "Once upon a time", "n_predict": 24, "seed": 7, "return_tokens": true});
    let answer = call("complete", &request);
    assert_eq!(answer["success"], true, "{answer}");
    json!([answer["content"], answer["tokens"], answer["speculative"]["type"]])
}

fn load_models(more: Value) {
    let command = command(more);
    assert_eq!(load(Some(command.to_string().as_bytes())), 0, "{command}: {}", status());
}

#[test]
fn models_from_everywhere_give_the_completion_of_their_paths() {
    let _guard = exclusive();
    load_models(json!({}));
    let expected = completion();
    let pak = Pak::new("both.pak");
    (&pak.file).seek(SeekFrom::Start(77)).expect("a file");

    // Parts of a file, read.
    load_models(json!({"model": pak.part(pak.target), "model_draft": pak.part(pak.draft)}));
    assert_eq!(completion(), expected);
    let (answer, name) = (status(), format!("{} bytes of file descriptor {} from byte 4096", pak.target.1, pak.fd()));
    assert_eq!((&answer["model"], &answer["model_alias"]), (&json!(name), &json!(name)), "{answer}");
    assert!(answer["model_draft"].as_str().is_some_and(|name| name.contains("file descriptor")), "{answer}");
    assert_eq!(answer["warnings"], json!([]), "{answer}");
    assert_eq!((&pak.file).stream_position().expect("a file"), 77, "the host's position was moved");

    // Mapped: the target begins at a multiple of 32, and numbers may be strings.
    let target = json!({"fd": pak.fd(), "offset": "0x1000", "length": pak.target.1.to_string()});
    load_models(json!({"model": target, "use_mmap": true, "model_draft": model("draft")}));
    assert_eq!(completion(), expected);

    // The models come from memory and from a whole file. The engine does not need them after the load.
    let mut bytes = std::fs::read(model("target")).expect("a shipped model");
    let draft = File::open(model("draft")).expect("a shipped model");
    load_models(json!({"model": in_memory(&bytes), "model_draft": {"fd": draft.as_raw_fd()}, "use_mlock": false}));
    bytes.fill(0xAA);
    drop((draft, pak.file));
    assert_eq!(completion(), expected);
    std::fs::remove_file(pak.path).expect("it was written");
}

#[test]
fn load_in_the_background_reads_from_a_descriptor() {
    let _guard = exclusive();
    let pak = Pak::new("background.pak");
    let command = command(json!({"model": pak.part(pak.target), "model_draft": pak.part(pak.draft)}));
    load_async(Some(command.to_string().as_bytes()));
    wait_until("the end of the load", || status()["state"] != "loading");
    drop(pak);
    assert_eq!(status()["state"], "ready", "{}", status());
    assert_works();
}

#[test]
fn wrong_sources_are_errors() {
    let _guard = exclusive();
    let pak = Pak::new("wrong.pak");
    let (offset, length) = pak.target;
    let size = pak.file.metadata().expect("a file").len();
    let fd = pak.fd();
    let folder = File::open(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let device = File::open("/dev/zero").expect("a device");
    let unreadable = File::options().write(true).open(&pak.path).expect("a file");
    let memory = std::fs::read(model("target")).expect("a shipped model");
    let address = memory.as_ptr() as usize;
    let cases = [
        (json!({"fd": 1_000_000}), "no such open file descriptor"),
        (json!({"fd": -1}), "model.fd: expected a whole number from 0"),
        (json!({"fd": "five"}), "model.fd"),
        (json!({"fd": folder.as_raw_fd()}), "is not a regular file"),
        (json!({"fd": device.as_raw_fd()}), "is not a regular file"),
        (json!({"fd": unreadable.as_raw_fd()}), "is not open for reading"),
        (json!({"fd": fd}), "is not a GGUF file"),
        (json!({"fd": fd, "offset": 1}), "is not a GGUF file"),
        (json!({"fd": fd, "offset": -1}), "model.offset: expected a whole number from 0"),
        (json!({"fd": fd, "offset": "-0x10"}), "model.offset"),
        (json!({"fd": fd, "offset": 1.5}), "model.offset"),
        (json!({"fd": fd, "offset": size + 1}), "beyond the end of the file"),
        (json!({"fd": fd, "offset": i64::MAX, "length": i64::MAX}), "beyond the end of the file"),
        (json!({"fd": fd, "offset": size}), "is empty or truncated"),
        (json!({"fd": fd, "offset": offset, "length": 3}), "is empty or truncated"),
        (json!({"fd": fd, "offset": offset, "length": 0}), "model.length: expected a whole number from 1"),
        (json!({"fd": fd, "offset": offset, "length": size}), "beyond the end of the file"),
        (json!({"fd": fd, "offset": offset, "length": length - 1}), "is cut: it has"),
        (json!({"fd": fd, "offset": offset, "length": 1000}), ""),
        (json!({"fd": fd, "address": address, "length": 5}), "expected one of"),
        (json!({"path": model("target"), "fd": fd}), "expected one of"),
        (json!({}), "expected one of"),
        (json!([fd]), "model: expected a string"),
        (json!({"address": address}), "model.length: expected a number of bytes"),
        (json!({"address": 0, "length": 5}), "model.address"),
        (json!({"address": address, "length": i64::MAX}), "beyond all memory"),
        (json!({"address": address, "length": memory.len() - 1}), "is cut: it has"),
        (json!({"address": address + 1, "length": 100}), "is not a GGUF file"),
        // Nothing is mapped there: the first page never is, nor are addresses that are not canonical.
        (json!({"address": 16, "length": 100}), "cannot be read"),
        (json!({"address": 1_u64 << 62, "length": 100}), "cannot be read"),
    ];
    for (source, part) in cases {
        for mmap in [json!(null), json!(true)] {
            let command = command(json!({"model": source, "use_mmap": mmap}));
            assert_ne!(load(Some(command.to_string().as_bytes())), 0, "{command}");
            let error = status()["error"].as_str().expect("checked").to_owned();
            assert!(error.starts_with("model") && error.contains(part), "{command}: {error}");
        }
    }
    // The same for the draft and for adapters, and where the part cannot be mapped.
    for (more, parts) in [
        (json!({"model_draft": {"fd": 1_000_000}}), ["model_draft: file descriptor 1000000: ", "no such"]),
        (json!({"lora": [{"fd": 1_000_000}]}), ["lora: file descriptor 1000000: ", "no such"]),
        (json!({"lora": [{"scale": 1}]}), ["lora[0]: ", "expected"]),
        (json!({"model": pak.part(pak.draft), "use_mmap": true}), ["model: ", "aligned, cannot mmap"]),
    ] {
        assert_ne!(load(Some(command(more.clone()).to_string().as_bytes())), 0, "{more}");
        let error = status()["error"].as_str().expect("checked").to_owned();
        assert!(parts.iter().all(|part| error.contains(part)), "{more}: {error}");
    }
    load_models(json!({"model": {"path": model("target"), "ofset": 3}}));
    assert_eq!(status()["warnings"], json!(["unknown key \"model.ofset\" (did you mean \"model.offset\"?)"]));
    assert_works();
}

/// A file that becomes shorter, and memory of which a part cannot be read.
#[test]
fn sources_that_vanish_are_errors() {
    let _guard = exclusive();
    let bytes = std::fs::read(model("target")).expect("a shipped model");
    let half = bytes.len() / 2 / 65536 * 65536;
    // SAFETY: a new mapping, of which only the first half is written, and the second can then not be read. (Were it unmapped,
    // other memory could take its place.)
    let address = unsafe {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let start = libc::mmap(std::ptr::null_mut(), bytes.len(), protection, flags, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        start.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), half);
        assert_eq!(libc::mprotect(start.byte_add(half), bytes.len() - half, libc::PROT_NONE), 0);
        start
    };
    let refused = |source: Value| {
        let command = command(json!({"model": source, "model_draft": null}));
        assert_ne!(load(Some(command.to_string().as_bytes())), 0, "{command}");
        status()["error"].as_str().expect("checked").to_owned()
    };
    let error = refused(json!({"address": address as usize, "length": bytes.len()}));
    assert!(error.contains("cannot be loaded"), "{error}");
    // SAFETY: the mapping above.
    assert_eq!(unsafe { libc::munmap(address, bytes.len()) }, 0);

    // A memfd has no name; as a file it is as good, until it is cut.
    // SAFETY: a new descriptor, which nothing else owns.
    let mut memfd = unsafe {
        use std::os::fd::FromRawFd as _;
        File::from_raw_fd(libc::memfd_create(c"model".as_ptr(), libc::MFD_CLOEXEC))
    };
    memfd.write_all(&bytes).expect("memory");
    load_models(json!({"model": {"fd": memfd.as_raw_fd()}}));
    assert_works();
    unload();
    memfd.set_len(half as u64).expect("a memfd");
    let error = refused(json!({"fd": memfd.as_raw_fd()}));
    assert!(error.contains("is cut: it has"), "{error}");
}
