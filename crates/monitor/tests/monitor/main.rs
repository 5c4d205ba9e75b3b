//! The monitor with real clients and real connections.

mod hostile;
mod identity;
mod meet;
mod refuse;
mod support;
mod view;
