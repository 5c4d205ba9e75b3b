//! The monitor with real clients and real connections.

mod credentials;
mod doorbells;
mod held_up;
mod hostile;
mod identity;
mod matching;
mod refuse;
mod root;
mod scrape;
mod support;
mod view;
