//! Which monitor a user's programs reach, and what its policy allows them.

use std::fs;
use std::io;
use std::path::Path;

use monitor::policy::{Policy, PolicyError};
use promote::client::POLICY_FILE;
use promote::viewer::{View, ViewError, Viewer};
use promote::wire::view::Allowed;
use promote::{ConnectError, Place};

use super::finding::{Finding, Verdict};
use crate::setup::described;
use crate::shell::quoted;

const AREA: &str = "monitor";

/// What it sees, what it allows, and whose it is.
fn ask(place: &Place, user: u32) -> Result<(View, Option<Allowed>, u32), ViewError> {
    let viewer = Viewer::connect(place, "megapipe")?;
    Ok((viewer.query()?, viewer.allowed(user)?, viewer.user()?))
}

/// The places where programs of `user` search for a monitor, and the result at the first
/// that has one.
pub(super) struct Reach {
    user: u32,
    /// MEGAPIPE_MONITOR names the only place.
    named: bool,
    place: Option<Place>,
    pub(super) view: Option<View>,
    /// What its policy allows the user; none if it reports that to others only.
    allowed: Option<Allowed>,
    /// It is root's or the asker's own, so files that it names may be opened.
    trusted: bool,
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
            allowed: None,
            trusted: false,
            refusals: Vec::new(),
            looked_at: Vec::new(),
            no_own: None,
        };
        // The last place is the user's own.
        let own = places.last().filter(|_| !named).cloned();
        for place in places {
            let path = place.path().display().to_string();
            match ask(&place, user) {
                Ok((view, allowed, owner)) => {
                    (reach.view, reach.allowed, reach.place) = (Some(view), allowed, Some(place));
                    reach.trusted = owner == 0 || owner == rustix::process::geteuid().as_raw();
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
        let allowed = match (&self.view, self.allowed) {
            (Some(_), None) => {
                return Finding::note(AREA, NAME, "not reported to this user")
                    .instead("the monitor answers that user, root and its own user alone")
                    .remedy("run megapipe doctor as root");
            }
            (Some(_), Some(allowed)) => allowed,
            (None, _) => match usual(self.user) {
                Ok(allowed) => allowed,
                Err(error) => {
                    return Finding::missing(AREA, NAME, error.to_string())
                        .instead("a new monitor does not start with it")
                        .remedy(format!("correct {POLICY_FILE}"));
                }
            },
        };
        // What root's programs share with each other by default takes a right that this monitor lacks.
        let lacks_own = allowed.by_default && self.root_by_rule_alone();
        let found = format!("{}\n{}", source(&allowed), shares(&allowed, lacks_own));
        if allowed.outdated {
            let file = allowed.source;
            return Finding::missing(AREA, NAME, found)
                .instead(format!(
                    "the monitor follows the policy that it read before: {file} has changed since, and cannot be used"
                ))
                .remedy(format!(
                    "correct {file} (the monitor's log has the line); it is read again when the next program connects"
                ));
        }
        let shares_some = allowed.everybody || allowed.count > u32::from(lacks_own);
        match () {
            () if lacks_own && !allowed.everybody => {
                let finding = match shares_some {
                    true => Finding::note(AREA, NAME, found),
                    false => Finding::missing(AREA, NAME, found),
                };
                finding
                    .instead(
                        "connections between root's programs stay on TCP: this monitor has no capabilities and cannot read \
                         their namespaces, so they share only by `same_user = true` or an allow rule (docs/monitor.md, \
                         Policy, point 3)",
                    )
                    .remedy("sudo megapipe setup   (it prints the line to add to a policy that was written by hand)")
            }
            () if shares_some => Finding::ok(AREA, NAME, found),
            () if allowed.conditional > 0 => Finding::note(AREA, NAME, found)
                .instead(
                    "connections for which none of these rules holds stay on TCP, with the reason `policy`",
                )
                .remedy(self.setup()),
            () => Finding::missing(AREA, NAME, found)
                .instead("connections stay on TCP, with the reason `policy`")
                .remedy(self.setup()),
        }
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
        let command = || {
            format!("sudo megapipe setup --allow {user}   (or {user}:OTHER, for the user at the other end)")
        };
        self.policy_to_edit().unwrap_or_else(command)
    }

    /// What lets this user's programs share, where `megapipe setup --allow` does not: it adds an allow rule, to the usual file.
    pub(super) fn policy_to_edit(&self) -> Option<String> {
        let file = self.allowed.map(|allowed| allowed.source.to_string()).filter(|file| !file.is_empty())?;
        let (user, usual) = (described(self.user), file == POLICY_FILE);
        if self.policy_at(Path::new(&file)).is_some_and(|policy| policy.denies(self.user)) {
            return Some(format!(
                "change the deny rules of {file} that concern user {user}: no allow rule overrules them"
            ));
        }
        (!usual).then(|| {
            format!(
                "add an allow rule for user {user} to {file}, which this monitor follows (docs/monitor.md)"
            )
        })
    }

    /// The policy that the monitor follows; `None` if this user cannot read it, or another user chose its path: that may
    /// lead root to a device, or to a pipe on which open(2) waits.
    fn policy_at(&self, file: &Path) -> Option<Policy> {
        const MOST_BYTES: u64 = 1 << 20;
        let is_policy = |found: fs::Metadata| found.is_file() && found.len() <= MOST_BYTES;
        (self.trusted && fs::metadata(file).is_ok_and(is_policy)).then(|| Policy::load(file).ok())?
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

/// What the policy's usual file allows, which a monitor on demand reads; such a one is the user's own.
fn usual(user: u32) -> Result<Allowed, PolicyError> {
    let (policy, source) = match Policy::load(Path::new(POLICY_FILE)) {
        Ok(policy) => (policy, POLICY_FILE),
        Err(PolicyError::Unreadable { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {
            (Policy::default(), "")
        }
        Err(error) => return Err(error),
    };
    Ok(policy.allowed(user, user, source))
}

fn source(allowed: &Allowed) -> String {
    match allowed.source.to_string() {
        path if path.is_empty() => format!("built in, as there is no {POLICY_FILE}"),
        path => path,
    }
}

fn shares(allowed: &Allowed, lacks_own: bool) -> String {
    let mut with: Vec<String> = Vec::new();
    if allowed.everybody {
        with.push("everybody".into());
    } else {
        let named = allowed.users();
        let name = |other: &u32| if *other == allowed.user { "itself".to_owned() } else { described(*other) };
        with.extend(named.iter().filter(|other| !lacks_own || **other != allowed.user).map(name));
        let more = allowed.count - named.len() as u32;
        with.extend((more > 0).then(|| format!("{more} more users")));
    }
    if with.is_empty() {
        with.push("nobody".into());
    }
    let mut text = format!("{} with: {}", described(allowed.user), with.join(", "));
    text += &match allowed.conditional {
        0 => String::new(),
        1 => "\n1 rule depends on group, control group, port or address".into(),
        rules => format!("\n{rules} rules depend on group, control group, port or address"),
    };
    text
}
