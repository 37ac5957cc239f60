//! RPC servers of an isolated engine: silent ones block nothing, and one that dies takes no completion with it.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use foredraft::api::{Endpoint, Engine};
use serde_json::{Value, json};

use crate::common::{complete, model, start as start_local, text, with};
use crate::process::{drain, poll, start, submit};

const ADDRESS: &str = "FOREDRAFT_RPC";

/// An RPC server on this machine's CPU, in a child process that is killed on drop.
struct LocalEngine(Child);

impl Drop for LocalEngine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(address: &str) -> LocalEngine {
    let child = Command::new(std::env::current_exe().expect("a test has a path"))
        .args(["--exact", "rpc::child_runs_an_rpc_server", "--include-ignored", "--nocapture"])
        .env(ADDRESS, address)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
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
#[ignore = "run as a child process by the other tests"]
#[allow(unsafe_code)]
fn child_runs_an_rpc_server() {
    use llama_cpp_sys_2 as sys;
    type Serve = unsafe extern "C" fn(
        *const std::ffi::c_char,
        *const std::ffi::c_char,
        usize,
        usize,
        *mut sys::ggml_backend_dev_t,
    );
    let address = std::ffi::CString::new(std::env::var(ADDRESS).expect("set by the parent")).expect("no NUL");
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

#[test]
fn completion_survives_the_death_of_one_of_two_servers() {
    let request = json!({"prompt": "Once upon a time", "n_predict": 200, "temperature": 0, "ignore_eos": true});
    let expected = complete(&start_local(json!({"n_ctx": 512})), Endpoint::Foredraft, &request)["content"].clone();
    let there = [address(), address()];
    let [first, _second] = [serve(&there[0]), serve(&there[1])];
    let engine = start(json!({"n_ctx": 512, "rpc": there.join(","), "n_gpu_layers": 99, "fallback": true}));
    let id = submit(&engine, &request);
    let mut updates: Vec<Value> = poll(&engine, id, 60_000)["completion_updates"].as_array().expect("updates").clone();
    drop(first);
    updates.extend(drain(&engine, id));
    assert_eq!(json!(text(&updates)), expected);
    assert_eq!(updates.last().expect("an end")["stop_type"], "limit");
    let isolation = &engine.status()["isolation"];
    assert!(isolation["n_restarts"].as_u64() >= Some(1), "{isolation}");
    assert!(isolation["deaths"].to_string().contains("is left out now"), "{isolation}");
}

/// The server answers the test of it, and nothing afterwards.
#[test]
fn silent_server_blocks_neither_unload_nor_the_next_load() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let there = listener.local_addr().expect("bound").to_string();
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for (index, mut stream) in listener.incoming().flatten().enumerate() {
            if index == 0 {
                // ggml's first two commands: 9 bytes and their data.
                let _ = stream.read_exact(&mut [0; 33]);
                let _ = stream.write_all(&[&28_u64.to_le_bytes()[..], &[4; 28]].concat());
                let _ = stream.read_exact(&mut [0; 9]);
                let _ = stream.write_all(&[&4_u64.to_le_bytes()[..], &[1, 0, 0, 0]].concat());
            }
            silent.push(stream);
        }
    });
    let init = json!({"model": model("target"), "log_level": "none", "n_threads": 1, "isolate": true,
        "isolate_path": env!("CARGO_BIN_EXE_foredraft-engine")});
    let engine = Engine::new();
    engine.load_async(with(&init, json!({"rpc": there})).to_string().as_bytes());
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(engine.status()["state"], "loading", "{}", engine.status());
    let begun = Instant::now();
    engine.unload();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    engine.load(init.to_string().as_bytes()).expect("the next load");
}
