//! Which engine Megapipe takes on this system, and whether any can run: a channel is made and
//! listens, as every server does.

use std::env;
use std::io;
use std::net::{Ipv4Addr, TcpListener};

use megapipe::{AcceptAs, AcceptCount, Channel, Config, CreateError, RegisterError};
use sys::capabilities::{Capabilities, try_epoll};

use super::finding::Finding;
use super::limits;
use super::system::System;

const AREA: &str = "engine";
/// The environment variable that forces an engine.
const ENGINE_VARIABLE: &str = "MEGAPIPE_ENGINE";

/// The engine, or why there is none.
pub(super) struct Choice {
    pub(super) engine: Option<&'static str>,
    pub(super) reason: String,
    remedy: String,
    forced: Option<String>,
    epoll: io::Result<()>,
    /// A listening socket, and a channel that accepts on it where there is a channel.
    listener: Result<(), Refusal>,
}

/// Why there is no server, and what would help.
struct Refusal {
    reason: String,
    remedy: String,
}

impl Choice {
    pub(super) fn make(capabilities: &Capabilities, system: &System) -> Self {
        let forced = env::var(ENGINE_VARIABLE).ok().filter(|value| !value.is_empty());
        let mut channel = Channel::new(Config::default());
        let engine = channel.as_ref().ok().map(|channel| channel.engine().name());
        let (reason, remedy) = match (&channel, &forced) {
            (Ok(_), Some(name)) => (format!("{ENGINE_VARIABLE}={name}"), format!("unset {ENGINE_VARIABLE}")),
            (Ok(_), None) => (why(capabilities), "see io_uring below".to_owned()),
            (Err(error), _) => (error.to_string(), remedy(error, system)),
        };
        let listener = listen(channel.as_mut().ok()).map_err(|error| Refusal {
            reason: error.to_string(),
            remedy: match error.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE) => limits::more_open_files(system),
                _ => "allow socket, bind and listen; set the loopback interface up (ip link set lo up)"
                    .to_owned(),
            },
        });
        drop(channel);
        Self { engine, reason, remedy, forced, epoll: try_epoll(), listener }
    }

    /// Whether a Megapipe program can serve here.
    pub(super) fn runs(&self) -> bool {
        self.engine.is_some() && self.listener.is_ok()
    }
}

pub(super) fn findings(choice: &Choice, system: &System) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.push(match (choice.engine, &choice.forced) {
        (Some("uring"), _) => Finding::ok(AREA, "engine", "uring"),
        (Some(engine), forced) => {
            let found = if forced.is_some() { format!("{engine} (forced)") } else { engine.to_owned() };
            Finding::note(AREA, "engine", found)
                .instead("system calls one by one: more CPU time per transaction")
                .remedy(choice.remedy.as_str())
        }
        (None, _) => Finding::missing(AREA, "engine", choice.reason.as_str())
            .instead("Megapipe programs end at start with this error")
            .remedy(choice.remedy.as_str()),
    });
    findings.push(match &choice.epoll {
        Ok(()) => Finding::ok(AREA, "epoll", "works"),
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
            Finding::missing(AREA, "epoll", error.to_string())
                .instead("no fallback where io_uring is missing")
                .remedy(limits::more_open_files(system))
        }
        Err(error) => Finding::missing(AREA, "epoll", error.to_string())
            .instead("no fallback where io_uring is missing")
            .remedy("allow epoll_create1, epoll_ctl and epoll_pwait2 in the seccomp profile"),
    });
    findings.push(match &choice.listener {
        Ok(()) => Finding::ok(AREA, "tcp", "a listening socket can be made"),
        Err(refusal) => Finding::missing(AREA, "tcp", refusal.reason.as_str())
            .instead("no server can run here")
            .remedy(refusal.remedy.as_str()),
    });
    findings
}

/// The reason for the channel's choice of an engine, if it was free to choose.
fn why(capabilities: &Capabilities) -> String {
    match (capabilities.ring, capabilities.lacks()) {
        (Err(reason), _) => reason.to_string(),
        (Ok(()), Some(feature)) => format!("the io_uring engine cannot do without {feature}"),
        (Ok(()), None) => "io_uring works".to_owned(),
    }
}

/// Makes a listening socket and, on a channel, a queue of its connections: what every server begins with.
fn listen(channel: Option<&mut Channel>) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let Some(channel) = channel else {
        return Ok(());
    };
    let handle = channel.register(listener, 0).map_err(|error| match error {
        RegisterError::Io(cause) => cause,
        other => io::Error::other(other),
    })?;
    channel.accept(handle, AcceptCount::Unlimited, AcceptAs::LwSocket).map_err(io::Error::other)?;
    Ok(())
}

fn remedy(error: &CreateError, system: &System) -> String {
    match error {
        CreateError::UnknownEngine(_) | CreateError::RingUnavailable(_) => format!("unset {ENGINE_VARIABLE}"),
        CreateError::LockedMemory(_) => {
            format!("{}   (or: {ENGINE_VARIABLE}=epoll)", limits::more_locked_memory(system))
        }
        CreateError::Resources { cause, .. } => match cause.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => limits::more_open_files(system),
            _ => "see io_uring and limits below".to_owned(),
        },
        CreateError::Setting { .. } => "see limits below".to_owned(),
    }
}
