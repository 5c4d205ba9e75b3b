//! BPF programs and maps by bpf(2), assembled here: no compiler and no object file.
//!
//! [`Assembler`] makes [`Code`], [`Program::load`] has the kernel verify it, and [`WordArray`] and
//! [`SocketArray`] are the memory that a program shares with this process. All of it needs CAP_BPF,
//! and programs of tracepoints CAP_PERFMON too (capabilities(7)).

mod assembler;
mod command;
mod info;
mod map;
mod program;

pub use assembler::{
    Arithmetic, AssembleError, Assembler, Code, Condition, Helper, Label, Operand, Register, Size,
};
pub use info::Info;
pub use map::{SocketArray, WordArray};
pub use program::{Kind, Program, Tracepoint};

use std::io;
use std::os::fd::{OwnedFd, RawFd};

/// Why a map or program was not made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not allowed.
    #[error("BPF needs the capability CAP_BPF and, for tracepoints, CAP_PERFMON: {0}")]
    NotPermitted(#[source] io::Error),
    /// The kernel was built without it.
    #[error("this kernel has no BPF (CONFIG_BPF_SYSCALL): {0}")]
    Missing(#[source] io::Error),
    /// The code itself is wrong.
    #[error(transparent)]
    Code(#[from] AssembleError),
    /// The verifier refused the program, or the kernel is too old for it.
    #[error("the kernel refuses the BPF program: {cause}; its verifier: {log}")]
    Unverified {
        /// As bpf(2) failed.
        cause: io::Error,
        /// What the verifier wrote.
        log: String,
    },
    /// Anything else.
    #[error("BPF is refused: {0}")]
    Refused(#[source] io::Error),
}

/// Has a descriptor a number from `lowest` on.
fn raise(descriptor: &mut OwnedFd, lowest: RawFd) -> io::Result<()> {
    *descriptor = rustix::io::fcntl_dupfd_cloexec(&*descriptor, lowest)?;
    Ok(())
}

impl From<io::Error> for Error {
    fn from(cause: io::Error) -> Error {
        match cause.raw_os_error() {
            Some(libc::EPERM) => Error::NotPermitted(cause),
            Some(libc::ENOSYS) => Error::Missing(cause),
            _ => Error::Refused(cause),
        }
    }
}
