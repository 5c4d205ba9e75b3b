//! The monitors that are queried, and the previous answer of each: rates follow from two.

use std::io;
use std::path::{Path, PathBuf};

use promote::Place;
use promote::viewer::{View, ViewError, Viewer, places};

use super::report::{MonitorReport, Report};

/// What this program calls itself with a monitor.
const NAME: &str = "megapipe top";

/// A place where a monitor may be.
struct Source {
    place: Place,
    viewer: Option<Viewer>,
    before: Option<View>,
}

/// All places where monitors are searched for.
pub(super) struct Sources {
    /// --socket or MEGAPIPE_MONITOR names the only one.
    named: Option<PathBuf>,
    all: Vec<Source>,
}

impl Sources {
    /// The chosen place, or the usual ones.
    pub(super) fn new(chosen: Option<PathBuf>) -> Sources {
        let named = chosen.or_else(|| promote::Options::from_environment("top").socket);
        let sources = places(named.clone()).into_iter();
        Sources { all: sources.map(|place| Source { place, viewer: None, before: None }).collect(), named }
    }

    /// Asks every monitor; one that has gone is looked for again the next time.
    ///
    /// # Errors
    ///
    /// No monitor answers: where it was looked for, and why.
    pub(super) fn query(&mut self) -> Result<Report, String> {
        let mut report = Report::new();
        let mut troubles = Vec::new();
        for source in &mut self.all {
            match source.query() {
                Ok(monitor) => report.add(monitor),
                Err(error) => {
                    source.before = None;
                    troubles.push((source.place.path(), error));
                }
            }
        }
        if report.monitors.is_empty() { Err(explain(self.named.as_deref(), &troubles)) } else { Ok(report) }
    }
}

impl Source {
    fn query(&mut self) -> Result<MonitorReport, ViewError> {
        let viewer = match self.viewer.take() {
            Some(viewer) => viewer,
            None => Viewer::connect(&self.place, NAME)?,
        };
        let view = viewer.query()?;
        let report = MonitorReport::new(self.place.path(), &view, self.before.as_ref());
        self.viewer = Some(viewer);
        self.before = Some(view);
        Ok(report)
    }
}

/// Whether no monitor listens there.
fn is_absence(error: &ViewError) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    matches!(error, ViewError::System(error) if matches!(error.kind(), ConnectionRefused | NotFound))
}

fn explain(named: Option<&Path>, troubles: &[(&Path, ViewError)]) -> String {
    let absent: Vec<_> = troubles.iter().filter(|(_, error)| is_absence(error)).collect();
    let paths: Vec<_> = absent.iter().map(|(path, _)| path.display().to_string()).collect();
    let others = troubles.iter().filter(|(_, error)| !is_absence(error));
    let mut text: Vec<String> = others.map(|(path, error)| format!("{}: {error}", path.display())).collect();
    if !paths.is_empty() {
        text.push(format!("no monitor listens at {}", paths.join(" or at ")));
    }
    let is_forbidden = |error: &ViewError| matches!(error, ViewError::System(error) if error.kind() == io::ErrorKind::PermissionDenied);
    text.push(match named {
        _ if troubles.iter().any(|(_, error)| is_forbidden(error)) => {
            "its user and root may: sudo megapipe top".into()
        }
        Some(path) => format!("`megapipe monitor --socket {}` starts one there", path.display()),
        None => {
            "`megapipe run -- PROGRAM` starts one; if it listens elsewhere, name its socket with --socket"
                .into()
        }
    });
    text.join("; ")
}
