//! ggml's RPC servers: the devices of other machines.
//!
//! ggml waits for such a server without end, and ends the process where one does not answer, also on threads of its own,
//! which no guard reaches. So before ggml speaks with a server, a few words of its protocol show that one is there.

use std::ffi::{CString, c_char, c_void};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use llama_cpp_sys_2 as sys;
use parking_lot::Mutex;

use super::backend;
use super::guard::{Why, foredraft_rpc_add};
use crate::error::{Code, Error, Result};

/// How long a server may take to show that it is there.
const PATIENCE: Duration = Duration::from_secs(5);
/// ggml's numbers of two commands (`enum rpc_cmd`), and the bytes that the first one says of the client: zeros for plain TCP.
const HELLO: u8 = 14;
const DEVICE_COUNT: u8 = 15;
const CAPABILITIES: [u8; 24] = [0; 24];
/// No answer to these is longer.
const MAX_ANSWER: u64 = 256;

static SERVERS: Mutex<Vec<Server>> = Mutex::new(Vec::new());

struct Server {
    endpoint: String,
    registry: Registry,
    /// Whether it did when it was last asked.
    answers: bool,
}

struct Registry(sys::ggml_backend_reg_t);

// SAFETY: a registry lives as long as the process and does not change.
unsafe impl Send for Registry {}

/// Makes the devices of these servers (`host:port`) available, and finds out which of those known from before still are.
/// Servers stay known for the life of the process. Not while a model uses one: it may serve one client at a time.
///
/// # Errors
/// `model_error`: one of these does not answer within seconds, or is refused. [`Code::Cancelled`]: not `wanted` any more.
pub fn use_rpc_servers(endpoints: &[String], mut wanted: impl FnMut() -> bool) -> Result<()> {
    backend::start();
    let mut servers = SERVERS.lock();
    let mut still_wanted = || if wanted() { Ok(()) } else { Err(Error::new(Code::Cancelled, "the load was aborted")) };
    for server in servers.iter_mut() {
        still_wanted()?;
        server.answers = converse(&server.endpoint).is_ok();
    }
    for endpoint in endpoints {
        still_wanted()?;
        let silent = |why: &str| Err(Error::model(format!("rpc: no server answers at {endpoint:?}{why}")));
        match servers.iter().find(|server| server.endpoint == *endpoint) {
            Some(server) if server.answers => {}
            Some(_) => return silent(""),
            None => {
                if let Err(error) = converse(endpoint) {
                    return silent(&format!(": {error}"));
                }
                let registry = register(endpoint)?;
                servers.push(Server { endpoint: endpoint.clone(), registry, answers: true });
            }
        }
    }
    Ok(())
}

/// The devices of servers that no longer answer. ggml must not be asked about them.
pub(super) fn silent() -> Vec<sys::ggml_backend_dev_t> {
    let servers = SERVERS.lock();
    let silent = servers.iter().filter(|server| !server.answers).map(|server| server.registry.0);
    // SAFETY: the registry lives as long as the process, and the indices are below its count.
    silent
        .flat_map(|registry| unsafe {
            (0..sys::ggml_backend_reg_dev_count(registry)).map(move |i| sys::ggml_backend_reg_dev_get(registry, i))
        })
        .collect()
}

/// What ggml will say first, and the beginning of the answers.
fn converse(endpoint: &str) -> io::Result<()> {
    // Of several, ggml takes one of these.
    let address = endpoint.to_socket_addrs()?.find(SocketAddr::is_ipv4).ok_or(io::ErrorKind::AddrNotAvailable)?;
    let until = Instant::now() + PATIENCE;
    let mut stream = Timed { stream: TcpStream::connect_timeout(&address, PATIENCE)?, until };
    ask(&mut stream, HELLO, &CAPABILITIES)?;
    ask(&mut stream, DEVICE_COUNT, &[])
}

/// A connection that ends at some time, however little comes how often until then.
struct Timed {
    stream: TcpStream,
    until: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// A command is its number, the length of its data and the data; an answer a length and as much.
fn ask(stream: &mut Timed, command: u8, data: &[u8]) -> io::Result<()> {
    let mut request = vec![command];
    request.extend((data.len() as u64).to_le_bytes());
    request.extend(data);
    stream.write_all(&request)?;
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    match u64::from_le_bytes(length) {
        length @ ..=MAX_ANSWER => io::copy(&mut stream.take(length), &mut io::sink())
            .and_then(|read| if read == length { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it speaks another protocol")),
    }
}

fn register(endpoint: &str) -> Result<Registry> {
    let c_endpoint = CString::new(endpoint).map_err(|_| Error::invalid(format!("rpc: {endpoint:?} contains NUL")))?;
    type AddServer = unsafe extern "C" fn(*const c_char) -> sys::ggml_backend_reg_t;
    // SAFETY: the name is NUL-terminated; ggml documents the procedure "ggml_backend_rpc_add_server" of
    // the backend "RPC" as having the type `AddServer`, and returns NULL where there is none.
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
        // It asserts that the server is of its own version.
        let mut why = Why::new();
        let registry = foredraft_rpc_add(add, c_endpoint.as_ptr(), why.ptr(), why.size());
        if registry.is_null() {
            return Err(Error::model(format!("rpc: the server at {endpoint:?} was refused: {}", why.message())));
        }
        sys::ggml_backend_register(registry);
        Ok(Registry(registry))
    }
}
