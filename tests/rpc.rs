//! Remote devices through ggml's RPC servers: present, missing, silent, slow, and disappearing.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests may panic, and they call C functions"
)]

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use common::{complete, drain, start, submit, text};
use foredraft::api::Endpoint::{Completion, Speculative};
use foredraft::api::Engine;
use serde_json::{Value, json};

/// An RPC server on this machine's CPU, in a child process that is killed on drop.
struct LocalEngine(Child);

impl Drop for LocalEngine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(address: &str) -> LocalEngine {
    let child = Command::new(std::env::current_exe().expect("the test binary has a path"))
        .args(["--exact", "child_runs_an_rpc_server", "--include-ignored", "--nocapture"])
        .env("FOREDRAFT_RPC", address)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn();
    let server = LocalEngine(child.expect("the child starts"));
    let begun = Instant::now();
    while TcpStream::connect(address).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(600), "the server did not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

#[test]
#[ignore = "run as a child process by the other test"]
fn child_runs_an_rpc_server() {
    use llama_cpp_sys_2 as sys;
    type Serve = unsafe extern "C" fn(
        *const std::ffi::c_char,
        *const std::ffi::c_char,
        usize,
        usize,
        *mut sys::ggml_backend_dev_t,
    );
    let address = std::ffi::CString::new(std::env::var("FOREDRAFT_RPC").expect("set by the parent")).expect("no NUL");
    // With the kernels of this library, so that all computers give the same bits.
    foredraft::llama::start();
    // SAFETY: the backend is compiled in, its procedure has this type, and all arguments live until the process ends.
    unsafe {
        let registry = sys::ggml_backend_reg_by_name(c"RPC".as_ptr());
        let serve = sys::ggml_backend_reg_get_proc_address(registry, c"ggml_backend_rpc_start_server".as_ptr());
        let serve = std::mem::transmute::<*mut std::ffi::c_void, Serve>(serve);
        let mut device = sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU);
        serve(address.as_ptr(), std::ptr::null(), 1, 1, &raw mut device);
    }
}

/// An address with a free port.
fn address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").to_string()
}

fn content(answer: &Value) -> String {
    answer["content"].as_str().expect("a text").to_owned()
}

fn refused(engine: &Engine, init: &Value) -> String {
    let error = engine.load(init.to_string().as_bytes()).expect_err("no server answers");
    error.message().to_owned()
}

/// A single test, because llama.cpp keeps its RPC servers per process.
#[test]
fn rpc_servers_may_be_silent_slow_or_disappear() {
    let request = json!({"prompt": "Once upon a time", "n_predict": 48, "temperature": 0});
    let expected = content(&complete(&start(json!({})), Completion, &request));

    // No server, a server that never answers, and one that closes the connection after its first message.
    let base = json!({"model": common::model("target"), "n_threads": 1, "log_level": "none"});
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let closing = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (at_silent, at_closing) = (silent.local_addr().expect("bound"), closing.local_addr().expect("bound"));
    std::thread::spawn(move || {
        for mut stream in closing.incoming().flatten() {
            let mut hello = [0; 33];
            let _ = stream.read_exact(&mut hello);
            let _ = stream.write_all(&[&28_u64.to_le_bytes()[..], &[4; 28]].concat());
        }
    });
    // And a server that never finishes an answer.
    let slow = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at_slow = slow.local_addr().expect("bound");
    std::thread::spawn(move || {
        for mut stream in slow.incoming().flatten() {
            let _ = stream.write_all(&256_u64.to_le_bytes());
            while stream.write_all(&[0]).is_ok() {
                std::thread::sleep(Duration::from_millis(200));
            }
        }
    });
    for there in [address(), at_silent.to_string(), at_closing.to_string(), at_slow.to_string()] {
        let error = refused(&Engine::new(), &common::with(&base, json!({"rpc": there})));
        assert!(error.starts_with("rpc: the server at ") && error.contains("does not respond"), "{error}");
    }
    drop(silent);

    let there = address();
    let server = serve(&there);
    for _ in 0..2 {
        let engine = start(json!({"rpc": there, "n_gpu_layers": 99}));
        let devices = engine.status()["devices"].as_array().expect("devices").clone();
        let remote = devices.iter().find(|device| device["name"].as_str().is_some_and(|name| name.contains("RPC")));
        assert!(remote.is_some_and(|device| device["memory_total"].as_u64() > Some(0)), "{devices:?}");
        assert_eq!(content(&complete(&engine, Completion, &request)), expected);
        let answer = complete(&engine, Speculative, &request);
        assert_eq!(content(&answer), expected);
        assert!(answer["speculative"]["n_steps"].as_u64() > Some(0), "{answer}");
        let id = submit(&engine, Completion, &request);
        assert_eq!(text(&drain(&engine, Completion, id)), expected);
        engine.unload();
    }
    drop(server);

    // The server is gone: an init that names it fails, and one that does not name it succeeds.
    let error = refused(&Engine::new(), &common::with(&base, json!({"rpc": there})));
    assert!(error.starts_with("rpc: the server at ") && error.contains("does not respond"), "{error}");
    for more in [json!({}), json!({"devices": "none"}), json!({"devices": ["CPU"]})] {
        let engine = start(more.clone());
        assert_eq!(content(&complete(&engine, Completion, &request)), expected, "{more}");
    }
}
