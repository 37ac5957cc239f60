//! ggml's RPC servers: the devices of other machines.
//!
//! ggml waits for a server without a timeout, and ends the process if it does not respond, also on its own threads, where the guard
//! has no effect. So this module tests a server before ggml hears of it, and ggml speaks to it through a relay, which notices its loss.

mod protocol;
mod relay;

use std::ffi::{CString, c_char, c_void};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use llama_cpp_sys_2 as sys;
use parking_lot::Mutex;

use self::protocol::ServerFacts;
use self::relay::{RpcLink, test_server};
use crate::backend;
use crate::guard::ErrorBuffer;
use foredraft_base::error::{Code, Error, Result};
use foredraft_native::foredraft_rpc_add;

/// How long a load waits for an engine that was unloaded to close its connections.
const CLOSING: Duration = Duration::from_secs(2);

/// Locked only for a moment, because the status asks for devices.
static SERVERS: Mutex<Vec<RpcServer>> = Mutex::new(Vec::new());
/// All relays, also of servers that are being registered.
static LINKS: Mutex<Vec<Arc<RpcLink>>> = Mutex::new(Vec::new());
/// Locked while servers are tested and registered.
static TESTING: Mutex<()> = Mutex::new(());

struct RpcServer {
    link: Arc<RpcLink>,
    registry: Registry,
    /// It responded to the last test.
    responds: bool,
}

impl RpcServer {
    /// The server's devices, in its order.
    fn devices(&self) -> impl Iterator<Item = sys::ggml_backend_dev_t> {
        let registry = self.registry.0;
        // SAFETY: the registry lives as long as the process, and the indices are below its count.
        let count = unsafe { sys::ggml_backend_reg_dev_count(registry) };
        // SAFETY: as above.
        (0..count).map(move |index| unsafe { sys::ggml_backend_reg_dev_get(registry, index) })
    }
}

struct Registry(sys::ggml_backend_reg_t);

// SAFETY: a registry lives as long as the process and does not change.
unsafe impl Send for Registry {}

/// Registers the devices of these servers (`host:port`), and tests the servers that were registered before. Servers stay registered for
/// the life of the process. A server is lost if it does not answer for `timeout`. An RPC server serves one engine at a time.
///
/// # Errors
/// `model_error`: a server does not respond in time, or is refused. [`Code::Cancelled`]: `wanted` returned false.
pub fn use_rpc_servers(
    endpoints: &[String],
    timeout: Option<Duration>,
    mut wanted: impl FnMut() -> bool,
) -> Result<()> {
    backend::start();
    let _alone = TESTING.lock();
    let mut still_wanted = || if wanted() { Ok(()) } else { Err(Error::new(Code::Cancelled, "the load was aborted")) };
    let unresponsive = |endpoint: &str, reason: &str| {
        Error::model(format!("rpc: the server at {endpoint:?} does not respond{reason}"))
    };
    let links = || SERVERS.lock().iter().map(|server| Arc::clone(&server.link)).collect::<Vec<_>>();
    for link in links() {
        still_wanted()?;
        let tested = test(&link, timeout);
        let mut servers = SERVERS.lock();
        servers.iter_mut().filter(|server| Arc::ptr_eq(&server.link, &link)).for_each(|server| {
            server.responds = tested.is_ok();
        });
        if let (Err(reason), true) = (tested, endpoints.contains(&link.endpoint)) {
            return Err(unresponsive(&link.endpoint, &reason));
        }
    }
    for endpoint in endpoints {
        still_wanted()?;
        if links().iter().any(|link| link.endpoint == *endpoint) {
            continue;
        }
        let facts = test_server(endpoint).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => Error::model(format!("rpc: the server at {endpoint:?} is refused: {error}")),
            _ => unresponsive(endpoint, &format!(": {error}")),
        })?;
        let link = RpcLink::start(endpoint, facts.clone())
            .map_err(|error| Error::exhausted(format!("rpc: cannot connect to {endpoint:?}: {error}")))?;
        link.renew(facts, timeout);
        LINKS.lock().push(Arc::clone(&link));
        let registry = register(&link)?;
        SERVERS.lock().push(RpcServer { link, registry, responds: true });
    }
    Ok(())
}

/// Tests a known server, unless an engine of this process uses it: it may accept only one client at a time.
fn test(link: &RpcLink, timeout: Option<Duration>) -> std::result::Result<(), String> {
    let begun = Instant::now();
    while link.n_open() > 0 {
        if begun.elapsed() > CLOSING {
            return Err(": another engine uses it".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let facts = test_server(&link.endpoint).map_err(|error| format!(": {error}"))?;
    let constants = |facts: &ServerFacts| {
        let devices = facts.devices.iter().map(|device| (device.alignment, device.max_size)).collect::<Vec<_>>();
        (facts.hello.clone(), devices)
    };
    // ggml keeps them.
    if constants(&facts) != constants(&link.facts()) {
        return Err(": it has other devices than before".into());
    }
    link.renew(facts, timeout);
    Ok(())
}

/// From now on, these servers may be silent for only a few seconds, until the next load that uses them.
pub fn hurry_rpc_servers(endpoints: &[String]) {
    LINKS.lock().iter().filter(|link| endpoints.contains(&link.endpoint)).for_each(|link| link.hurry());
}

/// The devices of servers that do not respond. ggml must not access them.
pub(crate) fn unresponsive_devices() -> Vec<sys::ggml_backend_dev_t> {
    let servers = SERVERS.lock();
    servers.iter().filter(|server| !server.responds).flat_map(RpcServer::devices).collect()
}

/// A server's device, as its last test found it.
pub(crate) struct RpcDevice {
    /// `host:port` of the server.
    pub(crate) endpoint: String,
    /// The memory in bytes when the server was tested: free, and in total. Zeros if it did not respond.
    pub(crate) memory: (usize, usize),
}

/// The facts about a device, if it is a server's. Does not contact the server.
pub(crate) fn rpc_device(device: sys::ggml_backend_dev_t) -> Option<RpcDevice> {
    let servers = SERVERS.lock();
    servers.iter().find_map(|server| {
        let index = server.devices().position(|own| own == device)?;
        let facts = server.link.facts().devices.get(index).copied().filter(|_| server.responds).unwrap_or_default();
        let bytes = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let memory = (bytes(facts.memory_free), bytes(facts.memory_total));
        Some(RpcDevice { endpoint: server.link.endpoint.clone(), memory })
    })
}

/// The servers that a model uses, each with the number of its losses when the model's load began.
#[derive(Debug, Default)]
pub(crate) struct UsedServers(Vec<(Arc<RpcLink>, usize)>);

impl UsedServers {
    /// The servers of these devices; of all that respond if `None`.
    pub(crate) fn of(devices: Option<&[sys::ggml_backend_dev_t]>) -> UsedServers {
        let servers = SERVERS.lock();
        let uses = |server: &&RpcServer| match devices {
            Some(devices) => server.devices().any(|device| devices.contains(&device)),
            None => server.responds,
        };
        let used = servers.iter().filter(uses).map(|server| (Arc::clone(&server.link), server.link.n_losses()));
        UsedServers(used.collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Why a server was lost, if one was since the load began. Results since then are worthless.
    pub(crate) fn loss(&self) -> Option<String> {
        self.0.iter().find(|(link, n_losses)| link.n_losses() != *n_losses).map(|(link, _)| link.reason())
    }
}

fn register(link: &RpcLink) -> Result<Registry> {
    let (endpoint, local): (_, SocketAddr) = (&link.endpoint, link.local);
    let c_endpoint = CString::new(local.to_string()).map_err(|_| Error::invalid("rpc: an address contains NUL"))?;
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
        let registry = foredraft_rpc_add(Some(add), c_endpoint.as_ptr(), why.ptr(), why.size());
        if registry.is_null() {
            return Err(Error::model(format!("rpc: the server at {endpoint:?} was refused: {}", why.message())));
        }
        sys::ggml_backend_register(registry);
        Ok(Registry(registry))
    }
}
