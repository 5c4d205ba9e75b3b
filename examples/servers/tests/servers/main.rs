//! The servers as their users meet them: processes, real sockets, clients of others. Each
//! test runs on both engines.

mod demonstration;
mod drain;
mod hostile;
mod http;
mod kv;
mod kv_transcripts;
mod support;

/// Makes each function, which takes the engine's name, a test for each engine.
macro_rules! on_both_engines {
    ($($test:ident),* $(,)?) => {
        mod uring {
            $(#[test] fn $test() { crate::support::on_engine(stringify!($test), "uring", super::$test) })*
        }
        mod epoll {
            $(#[test] fn $test() { crate::support::on_engine(stringify!($test), "epoll", super::$test) })*
        }
    };
}
pub(crate) use on_both_engines;
