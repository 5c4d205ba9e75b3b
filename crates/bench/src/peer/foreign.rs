//! Peers written in C: `libevent` and `libuv`, where their libraries were found at build time.

use std::convert::Infallible;
use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::AsRawFd;

use super::Worker;
use crate::Reason;

#[cfg(libevent)]
pub(super) fn libevent(worker: &Worker) -> Result<Infallible, Reason> {
    run(worker, bench_libevent_serve)
}

#[cfg(libuv)]
pub(super) fn libuv(worker: &Worker) -> Result<Infallible, Reason> {
    run(worker, bench_libuv_serve)
}

type Ready = extern "C" fn(*const c_void);
type Serve = unsafe extern "C" fn(c_int, usize, Ready, *const c_void) -> c_int;

fn run(worker: &Worker, serve: Serve) -> Result<Infallible, Reason> {
    extern "C" fn ready(worker: *const c_void) {
        // SAFETY: the pointer is the one that `run` passed, to a worker that outlives the call.
        unsafe { &*worker.cast::<Worker>() }.ready();
    }
    let listener = worker.listener.as_raw_fd();
    let context: *const Worker = worker;
    // SAFETY: the listener stays open and the worker alive while the function runs.
    let error = unsafe { serve(listener, worker.options.size, ready, context.cast()) };
    Err(io::Error::from_raw_os_error(-error).into())
}

// SAFETY: the signatures are those of libevent.c and libuv.c beside this file.
unsafe extern "C" {
    #[cfg(libevent)]
    fn bench_libevent_serve(l: c_int, size: usize, ready: Ready, context: *const c_void) -> c_int;
    #[cfg(libuv)]
    fn bench_libuv_serve(l: c_int, size: usize, ready: Ready, context: *const c_void) -> c_int;
}
