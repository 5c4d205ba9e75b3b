//! System calls of another process, counted by a BPF program on the raw tracepoint `sys_enter`, which needs
//! CAP_BPF and CAP_PERFMON, or root.
//!
//! While they are counted every system call on the machine takes a slower path, so the count has a
//! time of its own and never runs while CPU time is measured.

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

/// Counts the system calls of one process while it lives: the program at its tracepoint, and the array of
/// one counter that it adds to.
#[derive(Debug)]
pub struct Counter {
    calls: WordArray,
    _tracepoint: Tracepoint,
}

impl Counter {
    /// Starts to count the calls of all threads of process `pid`.
    pub fn attach(pid: u32) -> io::Result<Self> {
        let namespace = fs::metadata("/proc/self/ns/pid")?;
        let calls = WordArray::new("calls", 1, 1).map_err(io::Error::other)?;
        let program = load(pid, &namespace, &calls).map_err(io::Error::other)?;
        Ok(Self { calls, _tracepoint: program.attach_to_tracepoint(c"sys_enter")? })
    }

    /// Calls since the start.
    pub fn count(&self) -> u64 {
        self.calls.entry(0).map_or(0, |words| words[0].load(Ordering::Relaxed))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const CALLS: u64 = 10_000;

    #[test]
    fn every_call_of_every_thread_is_counted() {
        let (begin, begun) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            begun.recv().unwrap();
            for _ in 0..CALLS {
                // SAFETY: takes no arguments.
                unsafe { libc::syscall(libc::SYS_getppid) };
            }
            end.send(()).unwrap();
        });
        let counter = match Counter::attach(std::process::id()) {
            Ok(counter) => counter,
            Err(error) => {
                println!("SKIPPED every_call_of_every_thread_is_counted: {error}");
                begin.send(()).unwrap();
                thread.join().unwrap();
                return;
            }
        };
        let before = counter.count();
        begin.send(()).unwrap();
        ended.recv().unwrap();
        let seen = counter.count() - before;
        thread.join().unwrap();
        // Other tests of this process make calls of their own meanwhile.
        assert!((CALLS..CALLS * 100).contains(&seen), "{seen}");
    }
}
