//! An RPC server of ggml's on this machine, and a connection to it that can break. Each test that declares this module can start the server.

#![allow(dead_code)] // each test binary uses only some of these

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const ADDRESS: &str = "FOREDRAFT_RPC";

/// An RPC server on this machine's CPU, in a child process that is killed on drop.
pub struct RpcServer(Child);

impl Drop for RpcServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server, and waits until it accepts connections.
pub fn serve(address: &str) -> RpcServer {
    let child = Command::new(std::env::current_exe().expect("a test has a path"))
        .args(["--exact", "rpc_server::child_runs_an_rpc_server", "--include-ignored", "--nocapture"])
        .env(ADDRESS, address)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let server = RpcServer(child.expect("the child starts"));
    let begun = Instant::now();
    while TcpStream::connect(address).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(600), "the server did not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

#[test]
#[ignore = "run as a child process by other tests"]
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

/// An address with a free port: below those that systems give to connections and to port 0, so that none takes it before the server does.
pub fn address() -> String {
    static N_ADDRESSES: AtomicUsize = AtomicUsize::new(0);
    const PORTS: std::ops::Range<usize> = 12_000..32_000;
    // Each test program begins somewhere else.
    let first = std::process::id() as usize * 101;
    let next = || PORTS.start + (first + N_ADDRESSES.fetch_add(1, Ordering::SeqCst)) % PORTS.len();
    let free = std::iter::repeat_with(next)
        .take(PORTS.len())
        .map(|port| format!("127.0.0.1:{port}"))
        .find(|address| TcpListener::bind(address).is_ok());
    free.expect("a free port")
}

/// The fault of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    None,
    /// It is closed, and new ones too.
    Cut,
    /// No more bytes arrive, and none on new ones.
    Silence,
    /// Other bytes arrive.
    Garble,
}

struct FaultState {
    fault: AtomicU8,
    /// The number of bytes of answers until it happens.
    left: AtomicUsize,
    /// The number of bytes of answers so far.
    passed: AtomicUsize,
}

impl FaultState {
    fn is(&self, fault: Fault) -> bool {
        self.fault.load(Ordering::SeqCst) == fault as u8 && self.left.load(Ordering::SeqCst) == 0
    }
}

/// A server in front of another one: it passes all bytes on until a fault happens.
pub struct FaultyServer {
    pub address: String,
    state: Arc<FaultState>,
}

impl FaultyServer {
    pub fn in_front_of(server: &str) -> FaultyServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        let none = AtomicU8::new(Fault::None as u8);
        let state = Arc::new(FaultState { fault: none, left: AtomicUsize::new(0), passed: AtomicUsize::new(0) });
        let (accepting, server) = (Arc::clone(&state), server.to_owned());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if accepting.is(Fault::Cut) {
                    continue;
                }
                let server = TcpStream::connect(&server).expect("the server is alive");
                pass(client, server, &accepting);
            }
        });
        FaultyServer { address, state }
    }

    /// Lets a fault happen after so many bytes of answers.
    pub fn set(&self, fault: Fault, left: usize) {
        self.state.left.store(left, Ordering::SeqCst);
        self.state.fault.store(fault as u8, Ordering::SeqCst);
    }

    /// Whether the bytes before the fault have passed.
    pub fn is_reached(&self) -> bool {
        self.state.left.load(Ordering::SeqCst) == 0
    }

    /// The number of bytes of answers so far.
    pub fn passed(&self) -> usize {
        self.state.passed.load(Ordering::SeqCst)
    }
}

/// Passes bytes between two connections, in both directions.
fn pass(client: TcpStream, server: TcpStream, state: &Arc<FaultState>) {
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut from_client, mut to_server) = (client.try_clone().expect("a copy"), server.try_clone().expect("a copy"));
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Both);
    });
    let state = Arc::clone(state);
    std::thread::spawn(move || pass_answers(server, client, &state));
}

fn pass_answers(mut server: TcpStream, mut client: TcpStream, state: &FaultState) {
    let mut buffer = [0; 4096];
    loop {
        let n = server.read(&mut buffer).unwrap_or(0);
        let is_armed = state.fault.load(Ordering::SeqCst) != Fault::None as u8;
        let sound = if is_armed { n.min(state.left.load(Ordering::SeqCst)) } else { n };
        if is_armed {
            state.left.fetch_sub(sound, Ordering::SeqCst);
        }
        state.passed.fetch_add(sound, Ordering::SeqCst);
        let rest = match state.fault.load(Ordering::SeqCst) {
            _ if sound == n => sound,
            fault if fault == Fault::Garble as u8 => {
                buffer[sound..n].iter_mut().for_each(|byte| *byte ^= 0x5a);
                n
            }
            _ => sound,
        };
        let is_closed = n == 0 || client.write_all(&buffer[..rest]).is_err() || state.is(Fault::Cut);
        if is_closed {
            let _ = (server.shutdown(Shutdown::Both), client.shutdown(Shutdown::Both));
            return;
        }
    }
}
