//! `megapipe doctor` reports whether the device or namespaces keep a user from a TCP in user space.

use std::process::Command;

use testkit::skip::{self, Skipped};

/// Runs `doctor` in a user namespace, without the right to make interfaces, after `prepare`. Returns what it found
/// of the device and of namespaces.
fn doctor(test: &str, prepare: &str) -> Option<[String; 2]> {
    let script =
        format!("{prepare} && exec setpriv --bounding-set=-net_admin,-dac_override \"$0\" doctor --json");
    let out = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script, env!("CARGO_BIN_EXE_megapipe")])
        .output()
        .expect("unshare is there");
    if !out.status.success() {
        let why = String::from_utf8_lossy(&out.stderr).trim().to_owned();
        skip::record(test, &Skipped::because(format!("no user namespace to try it in: {why}")));
        return None;
    }
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("one JSON document");
    let found = |name: &str| {
        let mut findings = report["findings"].as_array().expect("findings").iter();
        let finding = findings.find(|finding| finding["name"] == name).expect("a finding of this name");
        format!("{}: {}", finding["verdict"], finding["found"]).replace('"', "")
    };
    Some([found("/dev/net/tun"), found("network namespace")])
}

#[test]
fn a_forbidden_device_is_told_from_forbidden_namespaces() {
    const TEST: &str = "tun::a_forbidden_device_is_told_from_forbidden_namespaces";
    let hide = "f=$(mktemp) && chmod 0 $f && mount --bind $f /dev/net/tun && rm $f";
    if let Some([device, namespace]) = doctor(TEST, hide) {
        assert!(device.starts_with("missing: no permission on the device"), "{device}");
        assert_eq!(namespace, "ok: this user may make interfaces under unshare -Urn");
    }
    let forbid = "echo 0 >/proc/sys/user/max_user_namespaces";
    if let Some([device, namespace]) = doctor(TEST, forbid) {
        assert!(!device.contains("namespace"), "{device}");
        assert_eq!(namespace, "missing: no user namespaces for this user");
    }
}
