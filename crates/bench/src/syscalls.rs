//! System calls of another process, counted by the kernel.
//!
//! The tracepoint `raw_syscalls:sys_enter` is counted, by a perf event where tracefs tells its
//! number, else by a small BPF program (which needs CAP_BPF and CAP_PERFMON, or root). While it is
//! counted every system call on the machine takes a slower path, so the count has a time of its
//! own and never runs while CPU time is measured.

use std::io;

mod bpf;
mod perf;

/// Counts the system calls of one process while it lives.
#[derive(Debug)]
pub struct Counter(Method);

#[derive(Debug)]
enum Method {
    Perf(perf::Counter),
    Bpf(bpf::Counter),
}

impl Counter {
    /// Starts to count the calls of all threads of process `pid`.
    pub fn attach(pid: u32) -> io::Result<Self> {
        match perf::Counter::attach(pid) {
            Ok(counter) => Ok(Self(Method::Perf(counter))),
            Err(_) => Ok(Self(Method::Bpf(bpf::Counter::attach(pid)?))),
        }
    }

    /// Calls since the start.
    pub fn count(&self) -> io::Result<u64> {
        match &self.0 {
            Method::Perf(counter) => counter.count(),
            Method::Bpf(counter) => Ok(counter.count()),
        }
    }

    /// What does the counting, for the header of a run.
    pub fn method(&self) -> &'static str {
        match self.0 {
            Method::Perf(_) => "perf event on raw_syscalls:sys_enter",
            Method::Bpf(_) => "BPF program on raw_syscalls:sys_enter",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const CALLS: u64 = 10_000;

    /// Counts while another thread of this process makes CALLS system calls.
    fn calls_seen() -> Option<u64> {
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
                return None;
            }
        };
        let before = counter.count().unwrap();
        begin.send(()).unwrap();
        ended.recv().unwrap();
        let after = counter.count().unwrap();
        thread.join().unwrap();
        Some(after - before)
    }

    #[test]
    fn every_call_of_every_thread_is_counted() {
        let Some(seen) = calls_seen() else { return };
        // Other tests of this process make calls of their own meanwhile.
        assert!((CALLS..CALLS * 100).contains(&seen), "{seen}");
    }
}
