//! ggml's RPC servers: the devices of other machines.
//!
//! ggml waits for a server without a timeout, and ends the process if it does not respond, also on its own threads, where the guard
//! has no effect. So before ggml contacts a server, this module tests it with two commands of the protocol.

use std::ffi::{CString, c_char, c_void};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use llama_cpp_sys_2 as sys;
use parking_lot::Mutex;

use crate::error::{Code, Error, Result};
use crate::llama::backend;
use crate::llama::guard::{ErrorBuffer, foredraft_rpc_add};

/// The maximum time for the test of a server.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The numbers of two commands (`enum rpc_cmd`), and the client's capabilities in the first one: zeros for plain TCP.
const HELLO: u8 = 14;
const DEVICE_COUNT: u8 = 15;
const CAPABILITIES: [u8; 24] = [0; 24];
/// The maximum length of an answer to these commands.
const MAX_ANSWER: u64 = 256;

static SERVERS: Mutex<Vec<RpcServer>> = Mutex::new(Vec::new());

struct RpcServer {
    endpoint: String,
    registry: Registry,
    /// It responded to the last test.
    responds: bool,
}

struct Registry(sys::ggml_backend_reg_t);

// SAFETY: a registry lives as long as the process and does not change.
unsafe impl Send for Registry {}

/// Registers the devices of these servers (`host:port`), and tests the servers that were registered before. Servers stay registered for
/// the life of the process. Must not be called while a model uses one, because a server may accept only one client at a time.
///
/// # Errors
/// `model_error`: a server does not respond in time, or is refused. [`Code::Cancelled`]: `wanted` returned false.
pub fn use_rpc_servers(endpoints: &[String], mut wanted: impl FnMut() -> bool) -> Result<()> {
    backend::start();
    let mut servers = SERVERS.lock();
    let mut still_wanted = || if wanted() { Ok(()) } else { Err(Error::new(Code::Cancelled, "the load was aborted")) };
    for server in servers.iter_mut() {
        still_wanted()?;
        server.responds = test_server(&server.endpoint).is_ok();
    }
    for endpoint in endpoints {
        still_wanted()?;
        let unresponsive =
            |reason: &str| Err(Error::model(format!("rpc: the server at {endpoint:?} does not respond{reason}")));
        match servers.iter().find(|server| server.endpoint == *endpoint) {
            Some(server) if server.responds => {}
            Some(_) => return unresponsive(""),
            None => {
                if let Err(error) = test_server(endpoint) {
                    return unresponsive(&format!(": {error}"));
                }
                let registry = register(endpoint)?;
                servers.push(RpcServer { endpoint: endpoint.clone(), registry, responds: true });
            }
        }
    }
    Ok(())
}

/// The devices of servers that do not respond. ggml must not access them.
pub(in crate::llama) fn unresponsive_devices() -> Vec<sys::ggml_backend_dev_t> {
    let servers = SERVERS.lock();
    let unresponsive = servers.iter().filter(|server| !server.responds).map(|server| server.registry.0);
    // SAFETY: the registry lives as long as the process, and the indices are below its count.
    unresponsive
        .flat_map(|registry| unsafe {
            (0..sys::ggml_backend_reg_dev_count(registry)).map(move |i| sys::ggml_backend_reg_dev_get(registry, i))
        })
        .collect()
}

/// Sends ggml's first two commands, and reads the answers.
fn test_server(endpoint: &str) -> io::Result<()> {
    // ggml uses an IPv4 address.
    let address = endpoint.to_socket_addrs()?.find(SocketAddr::is_ipv4).ok_or(io::ErrorKind::AddrNotAvailable)?;
    let deadline = Instant::now() + TIMEOUT;
    let mut stream = TimedStream { stream: TcpStream::connect_timeout(&address, TIMEOUT)?, deadline };
    ask(&mut stream, HELLO, &CAPABILITIES)?;
    ask(&mut stream, DEVICE_COUNT, &[])
}

/// A connection with a deadline for all reads and writes together.
struct TimedStream {
    stream: TcpStream,
    deadline: Instant,
}

impl TimedStream {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for TimedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for TimedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Sends a command (its number, the length of the data, the data) and reads the answer (a length, the data).
fn ask(stream: &mut TimedStream, command: u8, data: &[u8]) -> io::Result<()> {
    let mut request = vec![command];
    request.extend((data.len() as u64).to_le_bytes());
    request.extend(data);
    stream.write_all(&request)?;
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    match u64::from_le_bytes(length) {
        length @ ..=MAX_ANSWER => io::copy(&mut stream.take(length), &mut io::sink())
            .and_then(|read| if read == length { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it uses another protocol")),
    }
}

fn register(endpoint: &str) -> Result<Registry> {
    let c_endpoint = CString::new(endpoint).map_err(|_| Error::invalid(format!("rpc: {endpoint:?} contains NUL")))?;
    type AddServer = unsafe extern "C" fn(*const c_char) -> sys::ggml_backend_reg_t;
    // SAFETY: the name is NUL-terminated. ggml documents the type `AddServer` for the procedure "ggml_backend_rpc_add_server" of the
    // backend "RPC", and returns NULL if there is none.
    unsafe {
        let rpc = sys::ggml_backend_reg_by_name(c"RPC".as_ptr());
        if rpc.is_null() {
            return Err(Error::model("rpc: this build has no RPC backend (GGML_RPC=ON)"));
        }
        let add = sys::ggml_backend_reg_get_proc_address(rpc, c"ggml_backend_rpc_add_server".as_ptr());
        if add.is_null() {
            return Err(Error::model("rpc: the RPC backend cannot add servers"));
        }
        let add: AddServer = std::mem::transmute::<*mut c_void, AddServer>(add);
        // It asserts that the server has the same version.
        let mut why = ErrorBuffer::new();
        let registry = foredraft_rpc_add(add, c_endpoint.as_ptr(), why.ptr(), why.size());
        if registry.is_null() {
            return Err(Error::model(format!("rpc: the server at {endpoint:?} was refused: {}", why.message())));
        }
        sys::ggml_backend_register(registry);
        Ok(Registry(registry))
    }
}
