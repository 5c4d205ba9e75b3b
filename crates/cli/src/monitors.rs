//! What a monitor sees, asked once.

use promote::Place;
use promote::viewer::{View, ViewError, Viewer};

pub(crate) fn ask(place: &Place) -> Result<View, ViewError> {
    Viewer::connect(place, "megapipe").and_then(|viewer| viewer.query())
}
