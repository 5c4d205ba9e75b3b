//! What the channel has to say, on standard error: C programs have no subscriber.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Metadata, Subscriber, span};

/// Starts to log what `MEGAPIPE_LOG` asks for: a level, or `off`; warnings by default.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let asked = std::env::var("MEGAPIPE_LOG").ok().and_then(|level| level.parse().ok());
        let level = asked.unwrap_or(LevelFilter::WARN);
        // A Rust program that uses these calls may have its own subscriber.
        let _ = tracing::subscriber::set_global_default(ToStderr { level });
    });
}

struct ToStderr {
    level: LevelFilter,
}

impl Subscriber for ToStderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::from("megapipe:"));
        event.record(&mut line);
        line.0.push('\n');
        // Nobody is left to be told that standard error is closed.
        let _ = std::io::stderr().write_all(line.0.as_bytes());
    }

    // Spans add nothing to lines as few as these.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
