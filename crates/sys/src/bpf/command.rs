//! The system call and the parts of its argument that are used here (linux/bpf.h, `union bpf_attr`).

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

pub(super) const MAP_CREATE: libc::c_int = 0;
pub(super) const MAP_LOOKUP_ELEM: libc::c_int = 1;
pub(super) const MAP_UPDATE_ELEM: libc::c_int = 2;
pub(super) const MAP_DELETE_ELEM: libc::c_int = 3;
pub(super) const PROG_LOAD: libc::c_int = 5;
pub(super) const PROG_TEST_RUN: libc::c_int = 10;
pub(super) const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
pub(super) const RAW_TRACEPOINT_OPEN: libc::c_int = 17;

#[repr(C)]
pub(super) struct MapCreate {
    pub(super) kind: u32,
    pub(super) key_size: u32,
    pub(super) value_size: u32,
    pub(super) entries: u32,
    pub(super) flags: u32,
    pub(super) inner_map: u32,
    pub(super) numa_node: u32,
    pub(super) name: [u8; NAME],
}

#[repr(C)]
pub(super) struct Element {
    pub(super) map: u32,
    pub(super) pad: u32,
    pub(super) key: u64,
    pub(super) value: u64,
    pub(super) flags: u64,
}

#[repr(C)]
pub(super) struct ProgramLoad {
    pub(super) kind: u32,
    pub(super) instructions: u32,
    pub(super) code: u64,
    pub(super) license: u64,
    pub(super) log_level: u32,
    pub(super) log_size: u32,
    pub(super) log: u64,
    pub(super) kernel_version: u32,
    pub(super) flags: u32,
    pub(super) name: [u8; NAME],
    pub(super) interface: u32,
    pub(super) attach_type: u32,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct TestRun {
    pub(super) program: u32,
    pub(super) result: u32,
    pub(super) data_in_size: u32,
    pub(super) data_out_size: u32,
    pub(super) data_in: u64,
    pub(super) data_out: u64,
    pub(super) repeat: u32,
    pub(super) duration: u32,
}

#[repr(C)]
pub(super) struct RawTracepointOpen {
    pub(super) name: u64,
    pub(super) program: u32,
    pub(super) pad: u32,
}

#[repr(C)]
pub(super) struct InfoByFd {
    pub(super) fd: u32,
    pub(super) length: u32,
    pub(super) info: u64,
}

/// The beginning of `struct bpf_map_info`.
#[repr(C)]
#[derive(Default)]
pub(super) struct MapInfo {
    pub(super) kind: u32,
    pub(super) id: u32,
    /// Of key and value, then entries and flags.
    pub(super) sizes: [u32; 4],
    pub(super) name: [u8; NAME],
}

/// The beginning of `struct bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
pub(super) struct ProgramInfo {
    pub(super) kind: u32,
    pub(super) id: u32,
    pub(super) tag: [u8; 8],
    /// Room for its code, of which there is none; then when it was loaded.
    pub(super) code: [u64; 4],
    pub(super) user: u32,
    pub(super) map_count: u32,
    pub(super) maps: u64,
    pub(super) name: [u8; NAME],
}

/// BPF_OBJ_NAME_LEN.
pub(super) const NAME: usize = 16;

/// The name by which bpftool(8) shows a map or program: cut to 15 characters.
pub(super) fn name(text: &str) -> [u8; NAME] {
    let mut name = [0; NAME];
    let len = text.len().min(NAME - 1);
    name[..len].copy_from_slice(&text.as_bytes()[..len]);
    name
}

/// A command that returns a descriptor.
///
/// # Safety
///
/// As for [`call`].
pub(super) unsafe fn open<T>(command: libc::c_int, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the caller keeps the conditions of `call`.
    let descriptor = unsafe { call(command, attributes) }?;
    // SAFETY: the descriptor is new and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Any command.
///
/// # Safety
///
/// `attributes` is the beginning of the command's part of `union bpf_attr`, and what it points to
/// lives and has the sizes that the command reads and writes.
pub(super) unsafe fn call<T>(command: libc::c_int, attributes: &mut T) -> io::Result<libc::c_int> {
    // SAFETY: the caller's; the kernel takes the rest of the union as zero.
    match unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) } {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result as libc::c_int),
    }
}
