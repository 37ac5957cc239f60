//! ggml's RPC protocol (`ggml-rpc.cpp`), as far as the relay needs it: which commands have an answer, and answers in place of a lost server.
//!
//! A command is its number (a byte), the length of its data (8 bytes), and the data. An answer is a length (8 bytes) and the data.

use std::io;

use foredraft_native::{FOREDRAFT_RPC_MAJOR, FOREDRAFT_RPC_MINOR, FOREDRAFT_RPC_PATCH};

/// `enum rpc_cmd`.
pub(super) const ALLOC_BUFFER: u8 = 0;
pub(super) const GET_ALIGNMENT: u8 = 1;
pub(super) const GET_MAX_SIZE: u8 = 2;
const BUFFER_GET_BASE: u8 = 3;
const SET_TENSOR_HASH: u8 = 7;
pub(super) const GET_TENSOR: u8 = 8;
const COPY_TENSOR: u8 = 9;
pub(super) const GET_DEVICE_MEMORY: u8 = 11;
const GET_ALLOC_SIZE: u8 = 13;
pub(super) const HELLO: u8 = 14;
pub(super) const DEVICE_COUNT: u8 = 15;

/// A command's number, and the length of its data.
pub(super) const HEADER: usize = 9;
/// The data of `HELLO`: the client's capabilities, zeros for plain TCP.
pub(super) const CAPABILITIES: [u8; 24] = [0; 24];
/// The maximum length of the data of a command with an answer.
pub(super) const MAX_QUESTION: u64 = 1 << 16;

/// Where the sizes of a tensor (4 numbers of 32 bits) and then its strides are in `rpc_tensor`.
const TENSOR_SIZES: usize = 20;
/// The address of a buffer that does not exist. ggml computes with it, but only a server would read there.
const NO_ADDRESS: u64 = 1 << 40;

/// A server's answers when it was tested.
#[derive(Debug, Clone, Default)]
pub(super) struct ServerFacts {
    pub(super) hello: Vec<u8>,
    pub(super) devices: Vec<DeviceFacts>,
}

/// A device of a server: the answers to `GET_ALIGNMENT`, `GET_MAX_SIZE` and `GET_DEVICE_MEMORY`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DeviceFacts {
    pub(super) alignment: u64,
    pub(super) max_size: u64,
    pub(super) memory_free: u64,
    pub(super) memory_total: u64,
}

/// A command with its data.
pub(super) fn command(number: u8, data: &[u8]) -> Vec<u8> {
    let mut message = vec![number];
    message.extend((data.len() as u64).to_le_bytes());
    message.extend(data);
    message
}

/// Whether a command has an answer.
pub(super) fn has_answer(number: u8) -> bool {
    matches!(
        number,
        ALLOC_BUFFER
            | GET_ALIGNMENT
            | GET_MAX_SIZE
            | BUFFER_GET_BASE
            | SET_TENSOR_HASH
            | GET_TENSOR
            | COPY_TENSOR
            | GET_DEVICE_MEMORY
            | GET_ALLOC_SIZE
            | HELLO
            | DEVICE_COUNT
    )
}

/// The length of the answer to a command.
pub(super) fn answer_length(number: u8, data: &[u8]) -> u64 {
    match number {
        HELLO => 28,
        ALLOC_BUFFER | GET_DEVICE_MEMORY => 16,
        DEVICE_COUNT => 4,
        SET_TENSOR_HASH | COPY_TENSOR => 1,
        // The last of the command's numbers is the size.
        GET_TENSOR => number_at(data, data.len().saturating_sub(8)),
        _ => 8,
    }
}

/// Whether ggml can use an answer without failing an assertion or keeping what is wrong. `facts`: what the server said before.
pub(super) fn is_plausible(number: u8, data: &[u8], answer: &[u8], facts: &ServerFacts) -> bool {
    let first = number_at(answer, 0);
    match number {
        HELLO | DEVICE_COUNT | GET_ALIGNMENT | GET_MAX_SIZE => answer == substitute(number, data, facts),
        BUFFER_GET_BASE => first != 0,
        // The command has the device and the size.
        ALLOC_BUFFER => first == 0 || number_at(answer, 8) >= number_at(data, 4),
        GET_ALLOC_SIZE => first < 1 << 48,
        _ => true,
    }
}

/// The answer in place of a lost server, of the length that ggml expects: its earlier answers, and no memory for a new buffer. (The values
/// of tensors are zeros, which this function does not make.) ggml keeps some of these numbers for the life of the process, so they must
/// suit the server if it returns.
pub(super) fn substitute(number: u8, data: &[u8], facts: &ServerFacts) -> Vec<u8> {
    let device = |at| {
        let index = data.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes);
        facts.devices.get(index as usize).copied().unwrap_or_default()
    };
    match number {
        HELLO => facts.hello.clone(),
        DEVICE_COUNT => (facts.devices.len() as u32).to_le_bytes().to_vec(),
        GET_ALIGNMENT => device(0).alignment.to_le_bytes().to_vec(),
        GET_MAX_SIZE => device(0).max_size.to_le_bytes().to_vec(),
        GET_DEVICE_MEMORY => [device(0).memory_free.to_le_bytes(), device(0).memory_total.to_le_bytes()].concat(),
        BUFFER_GET_BASE => NO_ADDRESS.to_le_bytes().to_vec(),
        GET_ALLOC_SIZE => generous_size(data.get(4..).unwrap_or_default()).to_le_bytes().to_vec(),
        ALLOC_BUFFER => vec![0; 16],
        SET_TENSOR_HASH | COPY_TENSOR => vec![1],
        _ => Vec::new(),
    }
}

/// Enough memory for a tensor on any device, with whatever padding.
fn generous_size(tensor: &[u8]) -> u64 {
    let number = |at: usize| {
        let bytes = tensor.get(TENSOR_SIZES + 4 * at..TENSOR_SIZES + 4 * at + 4);
        u64::from(bytes.and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes))
    };
    let largest = (0..4).map(|at| number(at).saturating_mul(number(4 + at))).max().unwrap_or(0);
    largest.saturating_mul(2).saturating_add(1 << 20)
}

/// The number of 64 bits at `at`. 0 beyond the end.
pub(super) fn number_at(data: &[u8], at: usize) -> u64 {
    let bytes = data.get(at..).and_then(|rest| rest.get(..8)).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u64::from_le_bytes)
}

/// The version of the protocol of this library.
const OURS: [u8; 3] = [FOREDRAFT_RPC_MAJOR as u8, FOREDRAFT_RPC_MINOR as u8, FOREDRAFT_RPC_PATCH as u8];

/// The version that the answer to a [`HELLO`] begins with.
fn version(hello: &[u8]) -> String {
    hello.iter().take(OURS.len()).map(u8::to_string).collect::<Vec<_>>().join(".")
}

/// The maximum number of devices of a server.
const MAX_DEVICES: u32 = 64;

/// Asks for all that [`ServerFacts`] has. `ask` sends a command and returns its answer, which has the expected length.
///
/// # Errors
/// Those of `ask`; the server speaks another protocol.
pub(super) fn ask_facts(mut ask: impl FnMut(u8, &[u8]) -> io::Result<Vec<u8>>) -> io::Result<ServerFacts> {
    let foreign = || io::Error::new(io::ErrorKind::InvalidData, "it uses another protocol");
    let hello = ask(HELLO, &CAPABILITIES).map_err(|error| match error.kind() {
        // Servers of some versions close the connection of a client of another.
        io::ErrorKind::UnexpectedEof => io::Error::new(
            error.kind(),
            format!("{error}: perhaps its protocol has another version than {}", version(&OURS)),
        ),
        _ => error,
    })?;
    // As ggml, which asserts it.
    let [our_major, our_minor, _] = OURS;
    if let [major, minor, ..] = *hello
        && (major != our_major || minor > our_minor)
    {
        let (theirs, ours) = (version(&hello), version(&OURS));
        let message = format!("its protocol has the version {theirs}, and this library's {ours}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    let count = ask(DEVICE_COUNT, &[])?;
    let n_devices = count.try_into().map(u32::from_le_bytes).map_err(|_| foreign())?;
    if !(1..=MAX_DEVICES).contains(&n_devices) {
        return Err(foreign());
    }
    let mut devices = Vec::new();
    for index in 0..n_devices {
        let index = index.to_le_bytes();
        let alignment = number_at(&ask(GET_ALIGNMENT, &index)?, 0);
        let max_size = number_at(&ask(GET_MAX_SIZE, &index)?, 0);
        let memory = ask(GET_DEVICE_MEMORY, &index)?;
        // ggml asserts it.
        if !alignment.is_power_of_two() {
            return Err(foreign());
        }
        let (memory_free, memory_total) = (number_at(&memory, 0), number_at(&memory, 8));
        devices.push(DeviceFacts { alignment, max_size, memory_free, memory_total });
    }
    Ok(ServerFacts { hello, devices })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn substitutes_have_the_length_that_ggml_expects() {
        let devices = vec![DeviceFacts { alignment: 64, max_size: 7, memory_free: 5, memory_total: 6 }];
        let facts = ServerFacts { hello: vec![7; 28], devices };
        let data = [vec![0; 392], 1000_u64.to_le_bytes().to_vec()].concat();
        for number in (0..=255).filter(|number| has_answer(*number) && *number != GET_TENSOR) {
            let answer = substitute(number, &data, &facts);
            assert_eq!(answer.len() as u64, answer_length(number, &data), "command {number}");
            assert!(is_plausible(number, &data, &answer, &facts), "command {number}");
        }
        assert_eq!(answer_length(GET_TENSOR, &data), 1000);
        assert_eq!(substitute(GET_ALIGNMENT, &[0; 4], &facts), 64_u64.to_le_bytes());
        assert_eq!(substitute(GET_DEVICE_MEMORY, &[0; 4], &facts)[8..], 6_u64.to_le_bytes());
    }

    #[test]
    fn impossible_answers_are_noticed() {
        let devices = vec![DeviceFacts { alignment: 64, ..DeviceFacts::default() }];
        let facts = ServerFacts { hello: vec![7; 28], devices };
        let is_plausible = |number, data: &[u8], answer: &[u8]| is_plausible(number, data, answer, &facts);
        assert!(!is_plausible(HELLO, &[], &[8; 28]));
        assert!(!is_plausible(DEVICE_COUNT, &[], &[2, 0, 0, 0]));
        assert!(!is_plausible(GET_ALIGNMENT, &[0; 4], &[0; 8]));
        assert!(!is_plausible(BUFFER_GET_BASE, &[1; 8], &[0; 8]));
        assert!(!is_plausible(GET_ALLOC_SIZE, &[], &[255; 8]));
        let buffer_of = |size: u64| [1_u64.to_le_bytes(), size.to_le_bytes()].concat();
        let wanted = [&[0; 4][..], &100_u64.to_le_bytes()].concat();
        assert!(!is_plausible(ALLOC_BUFFER, &wanted, &buffer_of(99)));
        assert!(is_plausible(ALLOC_BUFFER, &wanted, &buffer_of(100)));
    }

    #[test]
    fn generous_size_exceeds_a_tensor() {
        let mut tensor = vec![0; 400];
        for (at, number) in [1000_u32, 300, 1, 1, 4, 4000, 1_200_000, 1_200_000].into_iter().enumerate() {
            tensor[TENSOR_SIZES + 4 * at..][..4].copy_from_slice(&number.to_le_bytes());
        }
        assert_eq!(generous_size(&tensor), 2 * 1_200_000 + (1 << 20));
        assert_eq!(generous_size(&[]), 1 << 20);
    }

    #[test]
    fn server_without_devices_or_alignment_is_refused() {
        let answers = |n_devices: u32, alignment: u64| {
            ask_facts(|number, data| {
                let mut answer = vec![0; answer_length(number, data) as usize];
                match number {
                    DEVICE_COUNT => answer = n_devices.to_le_bytes().to_vec(),
                    GET_ALIGNMENT => answer = alignment.to_le_bytes().to_vec(),
                    HELLO => answer.splice(..OURS.len(), OURS).for_each(drop),
                    _ => {}
                }
                Ok(answer)
            })
        };
        assert_eq!(answers(2, 128).expect("it is fine").devices.len(), 2);
        assert!(answers(0, 128).is_err());
        assert!(answers(1_000_000, 128).is_err());
        assert!(answers(1, 48).is_err());
    }
}
