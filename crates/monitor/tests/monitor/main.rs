//! The monitor with real clients and real connections.

mod meet;
mod support;
