//! Every system call Megapipe makes: io_uring, epoll, sockets, mappings, and the probe of
//! what the kernel offers. The fence around `unsafe`: what is above this crate asks in
//! terms of borrowed descriptors and owned memory.

pub mod bpf;
pub mod capabilities;
pub mod clock;
pub mod doorbell;
pub mod epoll;
pub mod ethtool;
pub mod eventfd;
pub mod file;
pub mod mapping;
pub mod memory_file;
pub mod message;
pub mod packet;
pub mod process;
pub mod random;
pub mod reuseport;
pub mod scheduling;
pub mod signals;
pub mod socket;
pub mod socket_diag;
pub mod tcp;
pub mod uring;
pub mod user;
