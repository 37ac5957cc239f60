//! The relay between ggml's client and an RPC server.
//!
//! ggml's client ends the process when a server fails, and waits for it without limit. So ggml connects to this relay, on a port of this
//! machine, and the relay to the server. When the server dies, falls silent, or answers with something else, the relay answers in its place,
//! until ggml closes the connection. ggml's results are then worthless: each user of the server asks for [`RpcLink::n_losses`] afterwards.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::protocol::{self, HEADER, MAX_QUESTION, ServerFacts};
use crate::log::{self, Level};
use crate::unrecoverable;
use foredraft_host::forks;

/// The maximum time to connect, and for the test of a server.
pub(super) const TEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a server may still be silent once its engine is being unloaded.
const LAST_PATIENCE: Duration = Duration::from_secs(5);
/// A server that is slower than this many bytes per second is lost.
const SLOWEST: u64 = 1 << 16;
/// The interval at which a waiting relay looks at the time.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
const CHUNK: usize = 1 << 18;

/// A server and its relay.
#[derive(Debug)]
pub(super) struct RpcLink {
    /// `host:port` of the server.
    pub(super) endpoint: String,
    /// The address of the relay, which ggml gets.
    pub(super) local: SocketAddr,
    facts: Mutex<ServerFacts>,
    /// 0: no limit.
    timeout_ms: AtomicU64,
    /// When an engine that uses it began to unload.
    hurried: Mutex<Option<Instant>>,
    /// How often the server was lost, and why it was the last time.
    n_losses: AtomicUsize,
    reason: Mutex<String>,
    /// ggml's connections.
    n_open: AtomicUsize,
}

impl RpcLink {
    /// Starts a relay to a server, which was tested.
    ///
    /// # Errors
    /// The system has no port or thread for it.
    pub(super) fn start(endpoint: &str, facts: ServerFacts) -> io::Result<Arc<RpcLink>> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let link = Arc::new(RpcLink {
            endpoint: endpoint.to_owned(),
            local: listener.local_addr()?,
            facts: Mutex::new(facts),
            timeout_ms: AtomicU64::new(0),
            hurried: Mutex::default(),
            n_losses: AtomicUsize::new(0),
            reason: Mutex::default(),
            n_open: AtomicUsize::new(0),
        });
        let accepting = Arc::clone(&link);
        forks::spawn("foredraft-rpc", move || accepting.accept(&listener))?;
        Ok(link)
    }

    /// How often the server was lost.
    pub(super) fn n_losses(&self) -> usize {
        self.n_losses.load(Ordering::Acquire)
    }

    /// Why the server was lost the last time.
    pub(super) fn reason(&self) -> String {
        self.reason.lock().clone()
    }

    /// The number of ggml's connections.
    pub(super) fn n_open(&self) -> usize {
        self.n_open.load(Ordering::Acquire)
    }

    pub(super) fn facts(&self) -> ServerFacts {
        self.facts.lock().clone()
    }

    /// Sets what the newest test found, and how long the server may be silent.
    pub(super) fn renew(&self, facts: ServerFacts, timeout: Option<Duration>) {
        *self.facts.lock() = facts;
        *self.hurried.lock() = None;
        let millis = timeout.map_or(0, |timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1));
        self.timeout_ms.store(millis, Ordering::Release);
    }

    /// From now on, the server may be silent for only a few seconds.
    pub(super) fn hurry(&self) {
        *self.hurried.lock() = Some(Instant::now());
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            let Ok(client) = client else {
                // No more descriptors.
                std::thread::sleep(CHECK_INTERVAL);
                continue;
            };
            let is_own = client.peer_addr().is_ok_and(|peer| is_own_connection(peer, self.local));
            if !is_own || client.set_nodelay(true).is_err() {
                continue;
            }
            self.n_open.fetch_add(1, Ordering::AcqRel);
            let link = Arc::clone(self);
            let relay = move || {
                Relay { link: &link, client, server: None }.run();
                link.n_open.fetch_sub(1, Ordering::AcqRel);
            };
            if let Err(error) = forks::spawn("foredraft-rpc", relay) {
                // ggml's client fails: there is nothing that could answer it.
                self.n_open.fetch_sub(1, Ordering::AcqRel);
                log::write(Level::Error, &format!("rpc: cannot start a thread: {error}"));
            }
        }
    }

    fn lose(&self, error: &io::Error) {
        let reason = format!("rpc: the server at {:?} was lost: {error}", self.endpoint);
        log::write(Level::Error, &reason);
        unrecoverable::lose(&reason);
        *self.reason.lock() = reason;
        self.n_losses.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the server had enough time for a message of `length` bytes since `begun`.
    fn is_late(&self, begun: Instant, length: u64) -> bool {
        let timeout = self.timeout_ms.load(Ordering::Acquire);
        let allowance = Duration::from_secs(length / SLOWEST);
        let hurried = self.hurried.lock().is_some_and(|hurried| hurried.elapsed() > LAST_PATIENCE + allowance);
        (hurried && begun.elapsed() > LAST_PATIENCE + allowance)
            || (timeout > 0 && begun.elapsed() > Duration::from_millis(timeout) + allowance)
    }
}

/// Connects to the first address of an endpoint that accepts.
fn connect(endpoint: &str) -> io::Result<TcpStream> {
    let mut refused = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in endpoint.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, TEST_TIMEOUT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(CHECK_INTERVAL))?;
                stream.set_write_timeout(Some(CHECK_INTERVAL))?;
                keep_alive(&stream);
                return Ok(stream);
            }
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// Asks a server for what a client needs to know, within [`TEST_TIMEOUT`].
///
/// # Errors
/// It does not answer in time, or with something else.
pub(super) fn test_server(endpoint: &str) -> io::Result<ServerFacts> {
    let begun = Instant::now();
    let mut server = Patient { stream: connect(endpoint)?, is_late: |_| begun.elapsed() > TEST_TIMEOUT };
    protocol::ask_facts(|number, data| {
        server.write_all(&protocol::command(number, data))?;
        match number {
            protocol::HELLO => read_hello(&mut server),
            _ => read_answer(&mut server, protocol::answer_length(number, data)),
        }
    })
}

/// Reads the answer to a `HELLO`, which begins with the version of the server's protocol and has another length in others.
fn read_hello(server: &mut impl Read) -> io::Result<Vec<u8>> {
    const LONGEST: u64 = 256;
    let mut length = [0; 8];
    server.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    let mut hello = vec![0; usize::try_from(length.min(LONGEST)).unwrap_or(0)];
    server.read_exact(&mut hello)?;
    match length {
        3..=LONGEST => Ok(hello),
        _ => Err(other_length(length, protocol::answer_length(protocol::HELLO, &[]))),
    }
}

fn other_length(length: u64, expected: u64) -> io::Error {
    let message = format!("it uses another protocol: an answer has {length} bytes instead of {expected}");
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// Reads an answer of a few bytes.
fn read_answer(server: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    expect_length(server, length)?;
    let mut answer = vec![0; usize::try_from(length).unwrap_or(0)];
    server.read_exact(&mut answer)?;
    Ok(answer)
}

fn implausible() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it gave an answer that is not possible")
}

/// Reads the length of an answer.
fn expect_length(server: &mut impl Read, expected: u64) -> io::Result<()> {
    let mut length = [0; 8];
    server.read_exact(&mut length)?;
    match u64::from_le_bytes(length) {
        length if length == expected => Ok(()),
        length => Err(other_length(length, expected)),
    }
}

/// A connection whose reads and writes wait until `is_late`.
struct Patient<L> {
    stream: TcpStream,
    /// Whether something that has waited since this time is late.
    is_late: L,
}

impl<L: Fn(Instant) -> bool> Patient<L> {
    fn wait<T>(&mut self, mut attempt: impl FnMut(&mut TcpStream) -> io::Result<T>) -> io::Result<T> {
        let begun = Instant::now();
        loop {
            match attempt(&mut self.stream) {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    if (self.is_late)(begun) {
                        let seconds = begun.elapsed().as_secs();
                        let message = format!("it was silent or too slow for {seconds} seconds");
                        return Err(io::Error::new(io::ErrorKind::TimedOut, message));
                    }
                }
                // Also where each byte arrives just in time.
                Ok(_) if (self.is_late)(begun) => return Err(io::ErrorKind::TimedOut.into()),
                result => return result,
            }
        }
    }
}

impl<L: Fn(Instant) -> bool> Read for Patient<L> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait(|stream| stream.read(buffer))
    }
}

impl<L: Fn(Instant) -> bool> Write for Patient<L> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait(|stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// One connection of ggml's.
struct Relay<'a> {
    link: &'a RpcLink,
    client: TcpStream,
    /// `None`: the server is lost.
    server: Option<TcpStream>,
}

impl Relay<'_> {
    /// Relays until ggml closes the connection.
    fn run(mut self) {
        match connect(&self.link.endpoint) {
            Ok(server) => self.server = Some(server),
            Err(error) => self.link.lose(&error),
        }
        // Only ggml's end can fail here.
        while self.relay_command().is_ok() {}
    }

    fn relay_command(&mut self) -> io::Result<()> {
        let mut header = [0; HEADER];
        self.client.read_exact(&mut header)?;
        let (number, length) = (header[0], protocol::number_at(&header, 1));
        if !protocol::has_answer(number) {
            self.with_server(HEADER as u64, |server| server.write_all(&header));
            return self.relay_data(length);
        }
        if length > MAX_QUESTION {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut data = vec![0; usize::try_from(length).unwrap_or(0)];
        self.client.read_exact(&mut data)?;
        if number == protocol::HELLO {
            // Only plain TCP can be relayed.
            data.fill(0);
        }
        self.with_server(length, |server| server.write_all(&[&header[..], &data].concat()));
        self.relay_answer(number, &data)
    }

    /// Calls `work` with the server, unless it is lost, which it is if `work` fails. `length`: how many bytes it may take long for.
    fn with_server<T>(
        &mut self,
        length: u64,
        work: impl FnOnce(&mut Patient<&dyn Fn(Instant) -> bool>) -> io::Result<T>,
    ) -> Option<T> {
        let (link, stream, begun) = (self.link, self.server.take()?, Instant::now());
        let is_late = |_| link.is_late(begun, length);
        let mut server = Patient { stream, is_late: &is_late as &dyn Fn(Instant) -> bool };
        match work(&mut server) {
            Ok(done) => {
                self.server = Some(server.stream);
                Some(done)
            }
            Err(error) => {
                link.lose(&error);
                None
            }
        }
    }

    fn relay_data(&mut self, mut left: u64) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK.min(usize::try_from(left).unwrap_or(CHUNK))];
        while left > 0 {
            let size = chunk.len().min(usize::try_from(left).unwrap_or(CHUNK));
            let part = chunk.get_mut(..size).unwrap_or_default();
            self.client.read_exact(part)?;
            self.with_server(size as u64, |server| server.write_all(part));
            left -= size as u64;
        }
        Ok(())
    }

    fn relay_answer(&mut self, number: u8, data: &[u8]) -> io::Result<()> {
        let length = protocol::answer_length(number, data);
        self.client.write_all(&length.to_le_bytes())?;
        if number == protocol::GET_TENSOR {
            return self.relay_values(length);
        }
        let facts = self.link.facts();
        let answer = self.with_server(length, |server| {
            let answer = read_answer(server, length)?;
            if protocol::is_plausible(number, data, &answer, &facts) { Ok(answer) } else { Err(implausible()) }
        });
        self.client.write_all(&answer.unwrap_or_else(|| protocol::substitute(number, data, &facts)))
    }

    /// Relays the values of a tensor; zeros for those that a lost server did not send.
    fn relay_values(&mut self, mut left: u64) -> io::Result<()> {
        self.with_server(left, |server| expect_length(server, left));
        let mut chunk = vec![0; CHUNK.min(usize::try_from(left).unwrap_or(CHUNK))];
        while left > 0 {
            let size = chunk.len().min(usize::try_from(left).unwrap_or(CHUNK));
            let part = chunk.get_mut(..size).unwrap_or_default();
            if self.with_server(size as u64, |server| server.read_exact(part)).is_none() {
                part.fill(0);
            }
            self.client.write_all(part)?;
            left -= size as u64;
        }
        Ok(())
    }
}

/// Lets the system notice within half a minute that the server's machine is gone.
#[cfg(target_os = "linux")]
fn keep_alive(stream: &TcpStream) {
    use std::os::fd::AsRawFd as _;
    let options = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 10),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 5),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3),
    ];
    for (level, option, value) in options {
        let value: libc::c_int = value;
        // SAFETY: the socket is open, and the value is a number of the length that is given. Where it fails, the timeout remains.
        unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                level,
                option,
                (&raw const value).cast(),
                size_of::<libc::c_int>() as u32,
            );
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn keep_alive(_: &TcpStream) {}

/// Whether the other end of a connection to `local`, which is at `peer`, belongs to this process. Other programs get no way to the server, nor
/// do those that the host starts inherit the connection.
#[cfg(target_os = "linux")]
fn is_own_connection(peer: SocketAddr, local: SocketAddr) -> bool {
    let (SocketAddr::V4(peer), SocketAddr::V4(local)) = (peer, local) else { return false };
    let shown = |address: std::net::SocketAddrV4| {
        format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port())
    };
    // Each line: number, local address, remote address, state, queues, timer, retransmits, user, timeout, inode.
    let Ok(table) = std::fs::read_to_string("/proc/self/net/tcp") else { return true };
    let (from, to) = (shown(peer), shown(local));
    let inode = table.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let is_it = fields.next() == Some(&from) && fields.next() == Some(&to);
        is_it.then(|| fields.nth(6))?
    });
    let Some(inode) = inode else { return false };
    let socket = format!("socket:[{inode}]");
    let files = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let own = files.filter(|file| std::fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == &*socket));
    let descriptor = own.filter_map(|file| file.file_name().to_str()?.parse::<i32>().ok()).next();
    if let Some(descriptor) = descriptor {
        // SAFETY: sets a flag of a descriptor by its number. ggml has just opened it, and waits for this relay. A program that the host
        // starts would keep the connection open.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    descriptor.is_some()
}

#[cfg(not(target_os = "linux"))]
fn is_own_connection(_: SocketAddr, _: SocketAddr) -> bool {
    true
}
