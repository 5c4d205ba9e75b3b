//! Which monitor a user's programs reach, and what its policy allows them.

use std::io;
use std::path::Path;

use monitor::Partners;
use monitor::policy::{Policy, PolicyError};
use promote::Place;
use promote::client::POLICY_FILE;
use promote::viewer::{View, ViewError};

use super::finding::Finding;
use crate::monitors;
use crate::setup::described;

const AREA: &str = "monitor";

/// The places where programs of `user` look, and what answers at the first that does.
pub(super) struct Reach {
    user: u32,
    /// MEGAPIPE_MONITOR names the only place.
    named: bool,
    place: Option<Place>,
    pub(super) view: Option<View>,
    refusals: Vec<String>,
    looked_at: Vec<String>,
}

impl Reach {
    pub(super) fn find(user: u32, places: Vec<Place>, named: bool) -> Reach {
        let mut reach =
            Reach { user, named, place: None, view: None, refusals: Vec::new(), looked_at: Vec::new() };
        for place in places {
            let path = place.path().display().to_string();
            match monitors::ask(&place) {
                Ok(view) => {
                    (reach.view, reach.place) = (Some(view), Some(place));
                    break;
                }
                Err(ViewError::System(error)) if is_absence(&error) => reach.looked_at.push(path),
                // The message has the path.
                Err(ViewError::Place(error)) => reach.refusals.push(error.to_string()),
                Err(error) => reach.refusals.push(format!("{path}: {error}")),
            }
        }
        reach
    }

    pub(super) fn socket(&self) -> Option<&Path> {
        self.place.as_ref().map(Place::path)
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        vec![self.monitor(), self.policy()]
    }

    fn monitor(&self) -> Finding {
        const NAME: &str = "reached";
        let told = |finding: Finding| match self.refusals.is_empty() {
            true => finding,
            false => finding.instead(self.refusals.join("; ")),
        };
        match (&self.view, self.socket()) {
            (Some(view), Some(path)) => {
                let (path, by) = (path.display(), described(view.totals.uid));
                let found = format!("{path}, of user {by}, pid {}", view.totals.pid);
                match self.refusals.is_empty() {
                    true => Finding::ok(AREA, NAME, found),
                    false => told(Finding::note(AREA, NAME, found)),
                }
            }
            _ if self.refusals.is_empty() && self.named => {
                let path = self.looked_at.concat();
                Finding::missing(AREA, NAME, format!("none at {path}, which MEGAPIPE_MONITOR names"))
                    .instead("connections stay on TCP")
                    .remedy(format!("megapipe monitor --socket {path}   (or unset MEGAPIPE_MONITOR)"))
            }
            _ if self.refusals.is_empty() => {
                Finding::ok(AREA, NAME, format!("none yet at {}", self.looked_at.join(" or ")))
                    .instead("`megapipe run` starts one of this user's own")
            }
            _ => told(Finding::missing(AREA, NAME, "none")),
        }
    }

    fn policy(&self) -> Finding {
        const NAME: &str = "policy";
        let who = described(self.user);
        match self.partners() {
            Ok((partners, source)) => {
                let found = format!("{source}: {}", shares(&who, self.user, &partners));
                match partners.users.is_empty() && !partners.everybody {
                    true => Finding::note(AREA, NAME, found)
                        .instead("connections stay on TCP, with the reason `policy`")
                        .remedy(self.setup()),
                    false => Finding::ok(AREA, NAME, found),
                }
            }
            Err(error) => Finding::note(AREA, NAME, error.to_string())
                .instead("a running monitor keeps the policy that it read before; a new one does not start"),
        }
    }

    /// As the policy's usual file has it, which each monitor reads that was started without another.
    fn partners(&self) -> Result<(Partners, &'static str), PolicyError> {
        // One on demand is the user's own.
        let monitor = self.view.as_ref().map_or(self.user, |view| view.totals.uid);
        let (policy, source) = match Policy::load(Path::new(POLICY_FILE)) {
            Ok(policy) => (policy, POLICY_FILE),
            Err(PolicyError::Unreadable { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {
                (Policy::default(), "built in")
            }
            Err(error) => return Err(error),
        };
        Ok((policy.partners(monitor, self.user), source))
    }

    /// Whether programs of this user share with anybody.
    pub(super) fn shares(&self) -> bool {
        self.partners().map_or(true, |(partners, _)| partners.everybody || !partners.users.is_empty())
    }

    pub(super) fn setup(&self) -> String {
        let user = sys::user::name(self.user).ok().flatten().unwrap_or_else(|| self.user.to_string());
        format!("sudo megapipe setup --allow {user}   (or {user}:OTHER, for the user at the other end)")
    }
}

fn shares(who: &str, user: u32, partners: &Partners) -> String {
    let mut with: Vec<String> = Vec::new();
    if partners.everybody {
        with.push("everybody's".into());
    } else {
        let (own, others): (Vec<u32>, Vec<u32>) = partners.users.iter().partition(|other| **other == user);
        with.extend(own.iter().map(|_| "each other".to_owned()));
        with.extend(others.into_iter().map(|other| format!("those of {}", described(other))));
    }
    let mut text = match with.is_empty() {
        true => format!("programs of {who} share with nobody's"),
        false => format!("programs of {who} share with {}", with.join(", ")),
    };
    if partners.conditional > 0 {
        text +=
            &format!("; {} more rules depend on group, control group, port or address", partners.conditional);
    }
    text
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
}
