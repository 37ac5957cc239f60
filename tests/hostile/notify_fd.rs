//! `notify_fd`: every kind of descriptor, what is none, full ones, and readers that go away.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::c_api::{
    assert_works, call, command, exclusive, load, load_async, loaded, status, submit, unload, wait_until,
};

/// The end that the host reads, and the one that the library writes to.
fn pipe() -> (File, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: the array has two elements, and the new descriptors have no other owner.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (File::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    }
}

fn sockets() -> (File, OwnedFd) {
    let (reader, writer) = UnixStream::pair().expect("sockets");
    (File::from(OwnedFd::from(reader)), OwnedFd::from(writer))
}

fn eventfd() -> (File, OwnedFd) {
    // SAFETY: a new descriptor, which nothing else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
    (File::from(fd.try_clone().expect("a copy")), fd)
}

/// Sleeps until there is something to read, and reads it.
fn sleep_until_news(reader: &mut File) {
    let mut state = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which lives during the call. The time is for a test that hangs.
    assert_eq!(unsafe { libc::poll(&raw mut state, 1, 120_000) }, 1, "no news for 120 s");
    let mut bytes = [0; 4096];
    let n = reader.read(&mut bytes).expect("readable");
    assert!(n > 0 && n % 8 == 0, "{n} bytes");
}

fn set_blocking(fd: RawFd, blocking: bool) {
    // SAFETY: sets the flags of an open descriptor.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, if blocking { 0 } else { libc::O_NONBLOCK }) }, 0);
}

/// Takes a request's updates, after news alone.
fn read_to_its_end(reader: &mut File, id: u64) -> String {
    let mut text = String::new();
    loop {
        sleep_until_news(reader);
        let reply = call("poll", &json!({ "id": id }));
        for update in reply["completion_updates"].as_array().expect("updates") {
            text += update["content"].as_str().expect("content");
        }
        if reply["finished"] == true {
            return text;
        }
    }
}

#[test]
fn an_event_loop_sleeps_until_there_is_news() {
    let request = json!({"prompt": "Once upon a time", "n_predict": 12, "temperature": 0});
    for make in [pipe, sockets, eventfd] {
        let (mut reader, writer) = make();
        let _guard = loaded(json!({ "notify_fd": writer.as_raw_fd() }));
        // The library has its own copy.
        drop(writer);
        sleep_until_news(&mut reader); // the load has ended
        let expected = call("complete", &request)["content"].clone();
        let id = submit(&request);
        assert_eq!(Value::from(read_to_its_end(&mut reader, id)), expected);
    }
}

#[test]
fn the_end_of_a_load_is_news() {
    let _guard = exclusive();
    let (mut reader, writer) = pipe();
    for (model, state) in [(json!({}), "ready"), (json!({"model": "/nowhere.gguf"}), "failed")] {
        let mut command = command(model);
        command["notify_fd"] = writer.as_raw_fd().into();
        load_async(Some(command.to_string().as_bytes()));
        sleep_until_news(&mut reader);
        // The end of the former engine is news as well, so the new one may still be loading.
        wait_until("the end of the load", || status()["state"] == state);
    }
}

#[test]
fn what_is_no_such_descriptor_is_refused() {
    let _guard = exclusive();
    let (reader, writer) = pipe();
    let file = File::open("/dev/null").expect("/dev/null");
    let written = tempfile();
    for (number, what) in [
        (-1, "-1"),
        (1_000_000, "not open"),
        (reader.as_raw_fd(), "cannot be written"),
        (file.as_raw_fd(), "cannot be written"),
        (written.as_raw_fd(), "another type"),
    ] {
        let command = command(json!({ "notify_fd": number }));
        assert_eq!(load(Some(command.to_string().as_bytes())), 3, "{what}");
        let status = status();
        let error = status["error"].as_str().expect("an error");
        assert!(error.contains("notify_fd") && error.contains(what), "{error}");
    }
    drop(writer);
}

/// A file without a name.
fn tempfile() -> File {
    // SAFETY: a new descriptor, which nothing else owns.
    unsafe { File::from_raw_fd(libc::memfd_create(c"notify_fd".as_ptr(), libc::MFD_CLOEXEC)) }
}

#[test]
fn a_full_pipe_holds_nothing_up() {
    let (reader, writer) = pipe();
    let mut writer = File::from(writer);
    set_blocking(writer.as_raw_fd(), false);
    while writer.write(&[0; 4096]).is_ok() {}
    assert_eq!(writer.write(&[0]).expect_err("it is full").kind(), ErrorKind::WouldBlock);
    set_blocking(writer.as_raw_fd(), true);
    let _guard = loaded(json!({ "notify_fd": writer.as_raw_fd() }));
    assert_works();
    drop(reader);
}

#[test]
fn an_engine_whose_reader_is_gone_is_unloaded() {
    let endless = json!({"prompt": "Once", "n_predict": -1, "ignore_eos": true});
    // As most hosts have it: the signal ends the process.
    // SAFETY: no handler is set.
    let former = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    for make in [pipe, sockets] {
        let (mut reader, writer) = make();
        let _guard = loaded(json!({ "notify_fd": writer.as_raw_fd() }));
        drop(writer);
        submit(&endless);
        sleep_until_news(&mut reader);
        drop(reader);
        wait_until("the end of the engine", || status()["state"] == "uninitialized");
        // The next load has nothing to do with it.
        let command = command(json!({}));
        assert_eq!(load(Some(command.to_string().as_bytes())), 0, "{}", status());
        std::thread::sleep(Duration::from_millis(50));
        assert_works();
        unload();
    }
    // SAFETY: what it was.
    unsafe { libc::signal(libc::SIGPIPE, former) };
}
