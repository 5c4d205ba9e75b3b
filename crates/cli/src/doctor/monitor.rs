//! Which monitor a user's programs reach, and what its policy allows them.

use std::fs;
use std::io;
use std::path::Path;

use monitor::Partners;
use monitor::policy::{Policy, PolicyError};
use promote::client::POLICY_FILE;
use promote::viewer::{View, ViewError};
use promote::{ConnectError, Place};

use super::finding::{Finding, Verdict};
use crate::monitors;
use crate::setup::described;
use crate::shell::quoted;

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
    /// Why `megapipe run` can start none.
    no_own: Option<ConnectError>,
}

impl Reach {
    pub(super) fn find(user: u32, places: Vec<Place>, named: bool) -> Reach {
        let mut reach = Reach {
            user,
            named,
            place: None,
            view: None,
            refusals: Vec::new(),
            looked_at: Vec::new(),
            no_own: None,
        };
        // The last place is the user's own.
        let own = places.last().filter(|_| !named).cloned();
        for place in places {
            let path = place.path().display().to_string();
            match monitors::ask(&place) {
                Ok(view) => {
                    (reach.view, reach.place) = (Some(view), Some(place));
                    break;
                }
                Err(error) if error.is_absence() => reach.looked_at.push(path),
                // The message has the path.
                Err(ViewError::Place(error)) => reach.refusals.push(error.to_string()),
                Err(error) => reach.refusals.push(format!("{path}: {error}")),
            }
        }
        if reach.view.is_none() {
            reach.no_own = own.and_then(|own| own.check(user).err());
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
        let told = |finding: Finding| match &self.refusals[..] {
            [] => finding,
            [refusal] => explained(finding, refusal),
            refusals => finding.instead(refusals.join("; ")),
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
                    .remedy(format!(
                        "megapipe monitor --socket {}   (or unset MEGAPIPE_MONITOR)",
                        quoted(path.as_ref())
                    ))
            }
            _ if self.refusals.is_empty() => {
                let places = self.looked_at.join(" or ");
                let Some(error) = &self.no_own else {
                    return Finding::ok(AREA, NAME, format!("none yet at {places}"))
                        .instead("`megapipe run` starts one of this user's own");
                };
                let finding = Finding::missing(AREA, NAME, format!("none at {places}"));
                explained(finding, &format!("connections stay on TCP: {error}"))
            }
            _ => told(Finding::missing(AREA, NAME, "none")),
        }
    }

    fn policy(&self) -> Finding {
        const NAME: &str = "policy";
        let (partners, source) = match self.partners() {
            Ok(found) => found,
            Err(error) => {
                return Finding::missing(AREA, NAME, error.to_string())
                    .instead(
                        "a running monitor keeps the policy that it read before; a new one does not start",
                    )
                    .remedy(format!(
                        "correct {POLICY_FILE}; a monitor reads it again when the next program connects"
                    ));
            }
        };
        let found = format!("{source}\n{}", shares(self.user, &partners));
        match () {
            () if self.root_by_rule_alone()
                && !partners.everybody
                && !partners.users.contains(&self.user) =>
            {
                let finding = match partners.users.is_empty() {
                    true => Finding::missing(AREA, NAME, found),
                    false => Finding::note(AREA, NAME, found),
                };
                finding
                    .instead(
                        "connections between root's programs stay on TCP: this monitor has no capabilities and cannot read \
                         their namespaces, so they share only by `same_user = true` or an allow rule (docs/monitor.md, \
                         Policy, point 3)",
                    )
                    .remedy("sudo megapipe setup   (it prints the line to add to a policy that was written by hand)")
            }
            () if partners.everybody || !partners.users.is_empty() => Finding::ok(AREA, NAME, found),
            () if partners.conditional > 0 => Finding::note(AREA, NAME, found)
                .instead(
                    "connections for which none of these rules holds stay on TCP, with the reason `policy`",
                )
                .remedy(self.setup()),
            () => Finding::missing(AREA, NAME, found)
                .instead("connections stay on TCP, with the reason `policy`")
                .remedy(self.setup()),
        }
    }

    /// As the policy's usual file has it, which each monitor reads that was started without another.
    fn partners(&self) -> Result<(Partners, &'static str), PolicyError> {
        let (policy, source) = match Policy::load(Path::new(POLICY_FILE)) {
            Ok(policy) => (policy, POLICY_FILE),
            Err(PolicyError::Unreadable { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {
                (Policy::default(), "built in, as there is no /etc/megapipe/monitor.toml")
            }
            Err(error) => return Err(error),
        };
        let monitor = match &self.view {
            // What the monitor's own user has without a rule is not root's here: any other number serves.
            Some(_) if self.root_by_rule_alone() => u32::MAX,
            Some(view) => view.totals.uid,
            // One on demand is the user's own.
            None => self.user,
        };
        Ok((policy.partners(monitor, self.user), source))
    }

    /// Whether root's monitor lacks the right to read the namespaces of root's programs (ptrace(2), access mode
    /// checking): it has fewer capabilities than they, as that of the systemd unit.
    fn root_by_rule_alone(&self) -> bool {
        let Some(view) = self.view.as_ref().filter(|view| view.totals.uid == 0 && self.user == 0) else {
            return false;
        };
        let of = |process: &str, set: &str| {
            let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix(set)?.strip_prefix(':'))?;
            u64::from_str_radix(line.trim(), 16).ok()
        };
        let effective = of(&view.totals.pid.to_string(), "CapEff");
        effective.is_some_and(|effective| {
            // A program that root executes gets its bounding set (capabilities(7)).
            let of_programs = of("self", "CapBnd").unwrap_or(0);
            effective & CAP_SYS_PTRACE == 0 && of_programs & !effective != 0
        })
    }

    /// What is to be done first, if no program of this user's can share as things are.
    pub(super) fn remedy(&self) -> Option<String> {
        let findings = [self.monitor(), self.policy()];
        findings
            .into_iter()
            .filter(|finding| finding.verdict == Verdict::Missing)
            .find_map(|finding| finding.remedy)
    }

    fn setup(&self) -> String {
        let user = user_name(self.user);
        format!("sudo megapipe setup --allow {user}   (or {user}:OTHER, for the user at the other end)")
    }
}

/// With a message of `megapipe run`: the cause, and after a semicolon the remedy.
fn explained(finding: Finding, message: &str) -> Finding {
    match message.rsplit_once("; ") {
        Some((cause, remedy)) => finding.instead(cause).remedy(remedy),
        None => finding.instead(message),
    }
}

/// For a command.
pub(super) fn user_name(user: u32) -> String {
    sys::user::name(user).ok().flatten().unwrap_or_else(|| user.to_string())
}

const CAP_SYS_PTRACE: u64 = 1 << 19;

fn shares(user: u32, partners: &Partners) -> String {
    let mut with: Vec<String> = Vec::new();
    if partners.everybody {
        with.push("everybody".into());
    } else {
        let (own, others): (Vec<u32>, Vec<u32>) = partners.users.iter().partition(|other| **other == user);
        with.extend(own.iter().map(|_| "itself".to_owned()));
        with.extend(others.into_iter().map(described));
    }
    if with.is_empty() {
        with.push("nobody".into());
    }
    let mut text = format!("{} with: {}", described(user), with.join(", "));
    text += &match partners.conditional {
        0 => String::new(),
        1 => "\n1 rule depends on group, control group, port or address".into(),
        rules => format!("\n{rules} rules depend on group, control group, port or address"),
    };
    text
}
