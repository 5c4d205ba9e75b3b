//! `megapipe run --local-listen` with servers of the distribution, each test in a network namespace of its own. Packets
//! on a loopback are handled on the CPU that sends them.

mod executed;
mod giving_up;
mod names;
mod nginx;
mod options;
mod others;
mod servers;
mod support;
mod traces;
mod turns;
mod untouched;
mod users;
