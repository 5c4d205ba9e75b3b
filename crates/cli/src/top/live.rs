//! The live view.
use std::time::Duration;

use super::source::Sources;

pub(super) fn run(_sources: &mut Sources, _interval: Duration) -> Result<(), String> {
    Err("use --once".into())
}
