//! Programs: loading, attaching, and trial runs.

use std::ffi::CStr;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use super::Error;
use super::assembler::Code;
use super::command::{self, ProgramLoad, RawTracepointOpen, TestRun};
use super::info;

/// What a program is for; decides its context, its helpers and what its result means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A filter of packets (BPF_PROG_TYPE_SOCKET_FILTER): how many bytes to keep.
    SocketFilter,
    /// Runs at each event of a raw tracepoint.
    RawTracepoint,
    /// Selects the member of a SO_REUSEPORT group for a new connection, and for each connection of
    /// a listener that closes another one to migrate to (BPF_SK_REUSEPORT_SELECT_OR_MIGRATE,
    /// Linux 5.14). Result: [`Program::PASS`] without a selected socket leaves it to the hash.
    ReuseportSelectOrMigrate,
}

/// A program that the kernel has verified. It lives on where it is attached.
#[derive(Debug)]
pub struct Program(OwnedFd);

impl Program {
    /// SK_PASS, the result of a selection that refuses nothing.
    pub const PASS: i32 = 1;

    /// Has the kernel verify `code`.
    ///
    /// # Errors
    ///
    /// [`Error`]; with the verifier's log if it refuses the program.
    pub fn load(name: &str, kind: Kind, code: &Code<'_>) -> Result<Program, Error> {
        // Without a log at first: it costs a multiple of the verification.
        let cause = match load(name, kind, code, &mut []) {
            Ok(program) => return Ok(Program(program)),
            Err(cause) => cause,
        };
        match Error::from(cause) {
            Error::Refused(cause) => {
                let mut log = vec![0; LOG_MAX];
                load(name, kind, code, &mut log).map(Program).map_err(|_| Error::Unverified {
                    cause,
                    log: CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy().into_owned(),
                })
            }
            error => Err(error),
        }
    }

    /// As [`super::WordArray::inherit`].
    ///
    /// # Errors
    ///
    /// EINVAL if it is of another make, or of other instructions.
    pub fn inherit(&self, fd: BorrowedFd<'_>) -> io::Result<Program> {
        info::same_make(self.as_fd(), fd).map(Program)
    }

    /// As [`super::WordArray::raise`].
    ///
    /// # Errors
    ///
    /// The same.
    pub fn raise(&mut self, lowest: RawFd) -> io::Result<()> {
        super::raise(&mut self.0, lowest)
    }

    /// Makes it the program of the whole SO_REUSEPORT group that `member` belongs to.
    ///
    /// # Errors
    ///
    /// As of setsockopt(2), SO_ATTACH_REUSEPORT_EBPF.
    pub fn attach_to_reuseport(&self, member: BorrowedFd<'_>) -> io::Result<()> {
        let program = self.0.as_raw_fd();
        // SAFETY: the kernel reads one descriptor number.
        let status = unsafe {
            libc::setsockopt(
                member.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_REUSEPORT_EBPF,
                (&raw const program).cast(),
                mem::size_of_val(&program) as libc::socklen_t,
            )
        };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Runs it at each event of the raw tracepoint of this name, until the result is dropped.
    ///
    /// # Errors
    ///
    /// As of BPF_RAW_TRACEPOINT_OPEN.
    pub fn attach_to_tracepoint(&self, name: &CStr) -> io::Result<Tracepoint> {
        let mut attributes =
            RawTracepointOpen { name: name.as_ptr() as u64, program: self.0.as_raw_fd() as u32, pad: 0 };
        // SAFETY: the name is terminated and lives for the call.
        let link = unsafe { command::open(command::RAW_TRACEPOINT_OPEN, &mut attributes) }?;
        Ok(Tracepoint { _link: link })
    }

    /// Runs it once over `packet`, of at least 14 bytes, and returns its result.
    ///
    /// # Errors
    ///
    /// ENOTSUPP if programs of this kind cannot be tried.
    pub fn run(&self, packet: &[u8]) -> io::Result<u32> {
        let mut attributes = TestRun {
            program: self.0.as_raw_fd() as u32,
            data_in_size: packet.len() as u32,
            data_in: packet.as_ptr() as u64,
            repeat: 1,
            ..TestRun::default()
        };
        // SAFETY: the kernel reads `data_in_size` bytes of a live slice, and writes no data, as there
        // is no room for any.
        unsafe { command::call(command::PROG_TEST_RUN, &mut attributes) }?;
        Ok(attributes.result)
    }
}

/// A program at a tracepoint; dropping it detaches the program.
#[derive(Debug)]
pub struct Tracepoint {
    _link: OwnedFd,
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn load(name: &str, kind: Kind, code: &Code<'_>, log: &mut [u8]) -> io::Result<OwnedFd> {
    let (kind, attach_type) = match kind {
        Kind::SocketFilter => (BPF_PROG_TYPE_SOCKET_FILTER, 0),
        Kind::RawTracepoint => (BPF_PROG_TYPE_RAW_TRACEPOINT, 0),
        Kind::ReuseportSelectOrMigrate => (BPF_PROG_TYPE_SK_REUSEPORT, BPF_SK_REUSEPORT_SELECT_OR_MIGRATE),
    };
    let mut attributes = ProgramLoad {
        kind,
        instructions: code.instructions.len() as u32,
        code: code.instructions.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64, // some helpers ask for the GPL
        log_level: u32::from(!log.is_empty()),
        log_size: log.len() as u32,
        log: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
        kernel_version: 0,
        flags: 0,
        name: command::name(name),
        interface: 0,
        attach_type,
    };
    for _ in 1..ATTEMPTS {
        // SAFETY: instructions, license and log live for the call and are of the sizes given.
        match unsafe { command::open(command::PROG_LOAD, &mut attributes) } {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
            result => return result,
        }
    }
    // SAFETY: as above.
    unsafe { command::open(command::PROG_LOAD, &mut attributes) }
}

/// The verifier gives up with EAGAIN when a signal is pending, or work of an io_uring of this thread.
const ATTEMPTS: u32 = 100;

/// Bytes of the verifier's log that are kept.
const LOG_MAX: usize = 64 << 10;

// linux/bpf.h
const BPF_PROG_TYPE_SOCKET_FILTER: u32 = 1;
const BPF_PROG_TYPE_RAW_TRACEPOINT: u32 = 17;
const BPF_PROG_TYPE_SK_REUSEPORT: u32 = 21;
const BPF_SK_REUSEPORT_SELECT_OR_MIGRATE: u32 = 40;
