//! What a TCP in user space needs: the device node, and a network namespace in which this user may make interfaces.

use std::process::{Command, Stdio};

use megapipe::packet::tun::{OpenError, open_node};

use super::finding::Finding;
use super::system::System;

const AREA: &str = "user-level tcp";

/// capabilities(7).
const CAP_NET_ADMIN: u32 = 12;

pub(super) fn findings(system: &System) -> Vec<Finding> {
    vec![device(), namespace(system)]
}

fn device() -> Finding {
    const NAME: &str = "/dev/net/tun";
    match open_node() {
        Ok(_) => Finding::ok(AREA, NAME, "this user may open it"),
        Err(OpenError::Missing(cause)) => Finding::missing(AREA, NAME, format!("not there: {cause}"))
            .instead("the kernel's TCP alone")
            .remedy("modprobe tun   (docker run --device /dev/net/tun)"),
        Err(OpenError::Denied(cause)) => {
            Finding::missing(AREA, NAME, format!("no permission on the device: {cause}"))
                .instead("the kernel's TCP alone")
                .remedy("chmod 0666 /dev/net/tun   (as udev makes it)")
        }
        Err(error) => Finding::missing(AREA, NAME, error.to_string()).instead("the kernel's TCP alone"),
    }
}

/// Whether this user may make a TUN device, here or in a network namespace of its own.
fn namespace(system: &System) -> Finding {
    const NAME: &str = "network namespace";
    let effective = system.status("CapEff").and_then(|mask| u64::from_str_radix(&mask, 16).ok());
    if effective.is_some_and(|mask| mask >> CAP_NET_ADMIN & 1 == 1) {
        return Finding::ok(AREA, NAME, "this user may make interfaces here");
    }
    let tried = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "true"])
        .stderr(Stdio::null())
        .status();
    match tried {
        Ok(status) if status.success() => Finding::ok(AREA, NAME, "this user may make interfaces under unshare -Urn"),
        Ok(_) => Finding::missing(AREA, NAME, "no user namespaces for this user")
            .instead("the kernel's TCP alone")
            .remedy("sysctl user.max_user_namespaces=10000   (Ubuntu: kernel.apparmor_restrict_unprivileged_userns=0)"),
        Err(cause) => Finding::note(AREA, NAME, format!("unknown: cannot run unshare ({cause})")),
    }
}
