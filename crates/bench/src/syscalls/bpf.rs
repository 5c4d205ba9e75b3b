//! Counting by a BPF program on the raw tracepoint (bpf(2)), for machines without tracefs.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// The program, its link to the tracepoint, and the array of one counter that it adds to.
#[derive(Debug)]
pub(super) struct Counter {
    map: OwnedFd,
    /// Closing it detaches the program.
    _link: OwnedFd,
}

impl Counter {
    pub(super) fn attach(pid: u32) -> io::Result<Self> {
        let namespace = fs::metadata("/proc/self/ns/pid")?;
        let map = bpf(
            BPF_MAP_CREATE,
            &mut MapCreate { kind: BPF_MAP_TYPE_ARRAY, key_size: 4, value_size: 8, entries: 1 },
        )?;
        let program = load(&program(pid, &namespace, map.as_raw_fd()))?;
        let link = bpf(
            BPF_RAW_TRACEPOINT_OPEN,
            &mut RawTracepointOpen {
                name: c"sys_enter".as_ptr() as u64,
                program: program.as_raw_fd() as u32,
                pad: 0,
            },
        )?;
        Ok(Self { map, _link: link })
    }

    pub(super) fn count(&self) -> io::Result<u64> {
        let (key, mut value) = (0_u32, 0_u64);
        let mut attributes = MapLookup {
            map: self.map.as_raw_fd() as u32,
            pad: 0,
            key: &raw const key as u64,
            value: &raw mut value as u64,
            flags: 0,
        };
        call(BPF_MAP_LOOKUP_ELEM, &mut attributes)?;
        Ok(value)
    }
}

/// ```text
/// r10-8: struct bpf_pidns_info { u32 pid, tgid } of the caller, in our pid namespace
/// if (tgid == pid) counter[0] += 1;
/// return 0;
/// ```
fn program(pid: u32, namespace: &fs::Metadata, map: i32) -> Vec<u64> {
    let mut code = Vec::new();
    code.extend(load_64(R1, 0, namespace.dev()));
    code.extend(load_64(R2, 0, namespace.ino()));
    code.push(instruction(MOV64_REG, R3, R10, 0, 0));
    code.push(instruction(ADD64_IMM, R3, 0, 0, -8));
    code.push(instruction(MOV64_IMM, R4, 0, 0, 8));
    code.push(instruction(CALL, 0, 0, 0, GET_NS_CURRENT_PID_TGID));
    code.push(instruction(JNE_IMM, R0, 0, 11, 0)); // of another namespace
    code.push(instruction(LOAD_W, R1, R10, -4, 0));
    code.push(instruction(JNE32_IMM, R1, 0, 9, pid as i32));
    code.push(instruction(STORE_W_IMM, R10, 0, -8, 0)); // the key
    code.extend(load_64(R1, PSEUDO_MAP_FD, map as u64));
    code.push(instruction(MOV64_REG, R2, R10, 0, 0));
    code.push(instruction(ADD64_IMM, R2, 0, 0, -8));
    code.push(instruction(CALL, 0, 0, 0, MAP_LOOKUP_ELEM));
    code.push(instruction(JEQ_IMM, R0, 0, 2, 0));
    code.push(instruction(MOV64_IMM, R1, 0, 0, 1));
    code.push(instruction(ATOMIC_ADD_DW, R0, R1, 0, 0));
    code.push(instruction(MOV64_IMM, R0, 0, 0, 0));
    code.push(instruction(EXIT, 0, 0, 0, 0));
    code
}

fn load(code: &[u64]) -> io::Result<OwnedFd> {
    bpf(
        BPF_PROG_LOAD,
        &mut ProgramLoad {
            kind: BPF_PROG_TYPE_RAW_TRACEPOINT,
            instructions: code.len() as u32,
            code: code.as_ptr() as u64,
            license: c"Dual MIT/GPL".as_ptr() as u64, // some helpers ask for it
        },
    )
}

/// `struct bpf_insn`.
fn instruction(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> u64 {
    let [low, high] = offset.to_ne_bytes();
    let [a, b, c, d] = immediate.to_ne_bytes();
    u64::from_ne_bytes([code, source << 4 | destination, low, high, a, b, c, d])
}

/// The one instruction that is two long: a 64-bit immediate, or a reference to a map.
fn load_64(destination: u8, kind: u8, value: u64) -> [u64; 2] {
    [
        instruction(LOAD_DW_IMM, destination, kind, 0, value as i32),
        instruction(0, 0, 0, 0, (value >> 32) as i32),
    ]
}

/// A bpf(2) command that returns a descriptor.
fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<OwnedFd> {
    let descriptor = call(command, attributes)?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn call<T>(command: libc::c_int, attributes: &mut T) -> io::Result<libc::c_int> {
    // SAFETY: `attributes` is the beginning of the command's part of union bpf_attr, of which the
    // kernel takes the rest as zero; what it points to outlives the call.
    match unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) } {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result as libc::c_int),
    }
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    entries: u32,
}

#[repr(C)]
struct MapLookup {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramLoad {
    kind: u32,
    instructions: u32,
    code: u64,
    license: u64,
}

#[repr(C)]
struct RawTracepointOpen {
    name: u64,
    program: u32,
    pad: u32,
}

// linux/bpf.h and linux/bpf_common.h
const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_RAW_TRACEPOINT_OPEN: libc::c_int = 17;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_PROG_TYPE_RAW_TRACEPOINT: u32 = 17;
const MAP_LOOKUP_ELEM: i32 = 1;
const GET_NS_CURRENT_PID_TGID: i32 = 120;
const PSEUDO_MAP_FD: u8 = 1;
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
const R10: u8 = 10;
const LOAD_DW_IMM: u8 = 0x18;
const LOAD_W: u8 = 0x61;
const STORE_W_IMM: u8 = 0x62;
const ATOMIC_ADD_DW: u8 = 0xdb;
const ADD64_IMM: u8 = 0x07;
const MOV64_IMM: u8 = 0xb7;
const MOV64_REG: u8 = 0xbf;
const JEQ_IMM: u8 = 0x15;
const JNE_IMM: u8 = 0x55;
const JNE32_IMM: u8 = 0x56;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
