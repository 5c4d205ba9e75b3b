//! Whether connections can be steered past threads that hang: by a BPF program of crate `steering`.

use steering::{SlowPath, Steering};
use sys::bpf::Error;

use super::finding::Finding;

const AREA: &str = "network";
const NAME: &str = "steering by BPF";

pub(super) fn finding() -> Finding {
    let error = match Steering::new(SlowPath::OtherMember) {
        Ok(_) => {
            return Finding::ok(
                AREA,
                NAME,
                "works: connections pass channels that hang, and outlive those that end",
            );
        }
        Err(error) => error,
    };
    let remedy = match &error {
        Error::NotPermitted(_) => {
            "setcap cap_bpf+ep PROGRAM   (systemd: AmbientCapabilities=CAP_BPF; \
             docker run --cap-add BPF, and a seccomp profile that allows bpf)"
        }
        Error::Missing(_) => "run a kernel built with CONFIG_BPF_SYSCALL=y",
        _ => "run Linux 5.14 or later",
    };
    Finding::note(AREA, NAME, error.to_string())
        .instead(
            "classic BPF steers by CPU alone: a channel that hangs delays its connections, and one that ends resets \
             those in its queue",
        )
        .remedy(remedy)
}
