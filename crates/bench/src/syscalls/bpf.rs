//! Counting by a BPF program on the raw tracepoint, for machines without tracefs.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

use sys::bpf::{
    Arithmetic, Assembler, Condition, Error, Helper, Kind, Program,
    Register::{R0, R1, R2, R3, R4, R10},
    Size, Tracepoint, WordArray,
};

/// The program at its tracepoint, and the array of one counter that it adds to.
#[derive(Debug)]
pub(super) struct Counter {
    counter: WordArray,
    _tracepoint: Tracepoint,
}

impl Counter {
    pub(super) fn attach(pid: u32) -> io::Result<Self> {
        let namespace = fs::metadata("/proc/self/ns/pid")?;
        let counter = WordArray::new("calls", 1, 1).map_err(io::Error::other)?;
        let program = load(pid, &namespace, &counter).map_err(io::Error::other)?;
        Ok(Self { counter, _tracepoint: program.attach_to_tracepoint(c"sys_enter")? })
    }

    pub(super) fn count(&self) -> u64 {
        self.counter.entry(0).map_or(0, |words| words[0].load(Ordering::Relaxed))
    }
}

/// ```text
/// r10-8: struct bpf_pidns_info { u32 pid, tgid } of the caller, in our pid namespace
/// if (tgid == pid) counter[0] += 1;
/// return 0;
/// ```
fn load(pid: u32, namespace: &fs::Metadata, counter: &WordArray) -> Result<Program, Error> {
    let mut code = Assembler::new();
    let end = code.label();
    code.set_wide(R1, namespace.dev()).set_wide(R2, namespace.ino());
    code.set(R3, R10).arithmetic(Arithmetic::Add, R3, -8).set(R4, 8).call(Helper::NamespacePid);
    code.jump_if(Condition::NotEqual, R0, 0, end); // of another namespace
    code.load(Size::Word, R1, R10, -4).jump_if(Condition::NotEqual, R1, pid as i32, end);
    code.store(Size::Word, R10, -8, 0); // the key
    code.set_map(R1, counter.as_fd())
        .set(R2, R10)
        .arithmetic(Arithmetic::Add, R2, -8)
        .call(Helper::MapLookup);
    code.jump_if(Condition::Equal, R0, 0, end).set(R1, 1).atomic_add(R0, 0, R1);
    code.place(end).set(R0, 0).exit();
    Program::load("count_calls", Kind::RawTracepoint, &code.finish()?)
}
