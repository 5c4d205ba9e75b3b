//! One checked item.

use serde::Serialize;

/// How well a thing serves Megapipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// As Megapipe wants it.
    Ok,
    /// Works, and could be better.
    Note,
    /// Not there; something else is used.
    Missing,
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Missing => "missing",
        }
    }
}

/// What was found, and what follows from it. The fields are the JSON schema: names stay, new ones may come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) area: &'static str,
    pub(super) name: String,
    pub(super) found: String,
    pub(super) verdict: Verdict,
    /// What Megapipe does or uses as things are.
    pub(super) instead: Option<String>,
    /// The command, or the step, that would change it.
    pub(super) remedy: Option<String>,
}

impl Finding {
    pub(super) fn ok(area: &'static str, name: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            area,
            name: name.into(),
            found: found.into(),
            verdict: Verdict::Ok,
            instead: None,
            remedy: None,
        }
    }

    pub(super) fn note(area: &'static str, name: impl Into<String>, found: impl Into<String>) -> Self {
        Self { verdict: Verdict::Note, ..Self::ok(area, name, found) }
    }

    pub(super) fn missing(area: &'static str, name: impl Into<String>, found: impl Into<String>) -> Self {
        Self { verdict: Verdict::Missing, ..Self::ok(area, name, found) }
    }

    pub(super) fn instead(mut self, instead: impl Into<String>) -> Self {
        self.instead = Some(instead.into());
        self
    }

    pub(super) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}
