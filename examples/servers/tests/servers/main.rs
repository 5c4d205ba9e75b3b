//! The servers as its users meet it: a process, real sockets, real clients. Each test is run
//! on both engines.

mod client;
mod demonstration;
mod drain;
mod echo;
mod hostile;
mod http;
mod kv;
mod kv_clients;
mod kv_transcripts;
mod lifecycle;
mod promotion;
mod server;
mod stack;

/// Makes each function, which takes the engine's name, a test for each engine.
macro_rules! on_both_engines {
    ($($test:ident),* $(,)?) => {
        mod uring {
            $(#[test] fn $test() { crate::server::on_engine(stringify!($test), "uring", super::$test) })*
        }
        mod epoll {
            $(#[test] fn $test() { crate::server::on_engine(stringify!($test), "epoll", super::$test) })*
        }
    };
}
pub(crate) use on_both_engines;
