//! Which engine Megapipe takes on this system, and whether any can run: a channel is made, as every program does.
use std::env;
use std::io;
use std::net::{Ipv4Addr, TcpListener};

use megapipe::{Channel, Config, CreateError};
use sys::capabilities::{Capabilities, try_epoll};

use super::finding::Finding;

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
    listener: io::Result<TcpListener>,
}

impl Choice {
    pub(super) fn make(capabilities: &Capabilities) -> Self {
        let forced = env::var(ENGINE_VARIABLE).ok().filter(|value| !value.is_empty());
        let channel = Channel::new(Config::default());
        let engine = channel.as_ref().ok().map(|channel| channel.engine().name());
        let (reason, remedy) = match (&channel, &forced) {
            (Ok(_), Some(name)) => (format!("{ENGINE_VARIABLE}={name}"), format!("unset {ENGINE_VARIABLE}")),
            (Ok(_), None) => (why(capabilities), "see io_uring below".to_owned()),
            (Err(error), _) => (error.to_string(), remedy(error)),
        };
        drop(channel);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        Self { engine, reason, remedy, forced, epoll: try_epoll(), listener }
    }

    /// Whether a Megapipe program can serve here.
    pub(super) fn runs(&self) -> bool {
        self.engine.is_some() && self.listener.is_ok()
    }
}

pub(super) fn findings(choice: &Choice) -> Vec<Finding> {
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
        Err(error) => Finding::missing(AREA, "epoll", error.to_string())
            .instead("no fallback where io_uring is missing")
            .remedy("allow epoll_create1, epoll_ctl and epoll_pwait2 in the seccomp profile"),
    });
    findings.push(match &choice.listener {
        Ok(_) => Finding::ok(AREA, "tcp", "a listening socket can be made"),
        Err(error) => Finding::missing(AREA, "tcp", error.to_string())
            .instead("no server can run here")
            .remedy("allow socket, bind and listen; set the loopback interface up (ip link set lo up)"),
    });
    findings
}

/// Why the channel took the engine it took, when nothing forced it.
fn why(capabilities: &Capabilities) -> String {
    match (capabilities.ring, capabilities.lacks()) {
        (Err(reason), _) => reason.to_string(),
        (Ok(()), Some(feature)) => format!("the io_uring engine cannot do without {feature}"),
        (Ok(()), None) => "io_uring works".to_owned(),
    }
}

fn remedy(error: &CreateError) -> String {
    match error {
        CreateError::UnknownEngine(_) | CreateError::RingUnavailable(_) => format!("unset {ENGINE_VARIABLE}"),
        CreateError::Resources { cause, .. } => match cause.raw_os_error() {
            Some(libc::ENOMEM) => format!("ulimit -l 8192   (or: {ENGINE_VARIABLE}=epoll)"),
            Some(libc::EMFILE | libc::ENFILE) => "ulimit -n 65536".to_owned(),
            _ => "see io_uring and limits below".to_owned(),
        },
        CreateError::Setting { .. } => "see limits below".to_owned(),
    }
}
