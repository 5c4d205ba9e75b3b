//! Security modules that confine programs by rules of their own: what the library needs of them.

use std::path::Path;

use promote::SYSTEM_SOCKET;

use super::finding::Finding;
use super::system::System;
use crate::library::{self, FILE_NAME};

const AREA: &str = "program";

/// AppArmor's profile for a file: by its path, as profiles are named. SELinux decides when the program starts.
pub(super) fn of_file(path: &Path, system: &System) -> Option<Finding> {
    if !has_apparmor(system) {
        return None;
    }
    let path = path.canonicalize().ok()?;
    let name = path.to_str()?.trim_start_matches('/').replace('/', ".");
    system.exists(&format!("/etc/apparmor.d/{name}")).then(|| apparmor(&name, "has a profile"))
}

/// The domain in which a process runs, if it is confined.
pub(super) fn of_process(pid: u32, system: &System) -> Option<Finding> {
    let attribute = |name: &str| {
        let text = system.read(&format!("/proc/{pid}/attr/{name}"))?;
        Some(text.trim_end_matches('\0').trim().to_owned())
    };
    if has_apparmor(system) {
        let label = attribute("apparmor/current").or_else(|| attribute("current"))?;
        let (profile, mode) = label.strip_suffix(')')?.rsplit_once(" (")?;
        let file = profile.trim_start_matches('/').replace('/', ".");
        // Only `enforce` and `kill` refuse anything.
        return (mode != "complain" && mode != "unconfined").then(|| apparmor(&file, &label));
    }
    if system.exists("/sys/fs/selinux/enforce") {
        let label = attribute("current")?;
        let domain = label.split(':').nth(2)?.to_owned();
        return (!domain.starts_with("unconfined")).then(|| selinux(&domain));
    }
    None
}

fn has_apparmor(system: &System) -> bool {
    system.read("/sys/module/apparmor/parameters/enabled").as_deref() == Some("Y")
}

fn library_path() -> String {
    library::find()
        .map_or_else(|_| format!("/usr/lib/*/megapipe/{FILE_NAME}"), |path| path.display().to_string())
}

fn apparmor(file: &str, found: &str) -> Finding {
    let library = library_path();
    Finding::note(AREA, "AppArmor", found)
        .instead("the library and the monitor only as the profile allows")
        .remedy(format!(
            "these lines in /etc/apparmor.d/local/{file}, then: apparmor_parser -r /etc/apparmor.d/{file}\n\
             {library} mr,\n{SYSTEM_SOCKET} rw,"
        ))
}

/// A domain that is entered by a transition starts with AT_SECURE, which makes ld.so ignore LD_PRELOAD.
fn selinux(domain: &str) -> Finding {
    Finding::note(AREA, "SELinux", format!("domain {domain}"))
        .instead("the library and the monitor only as the policy allows")
        .remedy(format!(
            "these lines in megapipe-{domain}.cil, then: semodule -i megapipe-{domain}.cil (`ausearch -m avc -ts recent` \
             shows what else is refused)\n\
             (allow init_t {domain} (process (noatsecure)))\n\
             (allow {domain} var_run_t (sock_file (write)))\n\
             (allow {domain} unconfined_service_t (unix_stream_socket (connectto)))"
        ))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A /proc and /sys with these files.
    fn system(name: &str, files: &[(&str, &str)]) -> System {
        let root = std::env::temp_dir().join(format!("megapipe-profile-{}-{name}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        System::below(root)
    }

    const ENABLED: (&str, &str) = ("/sys/module/apparmor/parameters/enabled", "Y\n");

    #[test]
    fn a_confined_domain_is_named_with_its_rules() {
        let confined = [ENABLED, ("/proc/7/attr/current", "/usr/sbin/mysqld (enforce)\n")];
        let remedy = of_process(7, &system("enforce", &confined)).unwrap().remedy.unwrap();
        assert!(remedy.contains("local/usr.sbin.mysqld") && remedy.contains(SYSTEM_SOCKET), "{remedy}");
        for label in ["unconfined\n", "/usr/sbin/mysqld (complain)\n", "\0"] {
            let files = [ENABLED, ("/proc/7/attr/current", label)];
            assert_eq!(of_process(7, &system("free", &files)), None, "{label}");
        }
        let label = ("/proc/7/attr/current", "system_u:system_r:redis_t:s0\0");
        let files = [("/sys/fs/selinux/enforce", "1"), label];
        let found = of_process(7, &system("selinux", &files)).unwrap();
        assert!(found.found.contains("redis_t") && found.remedy.unwrap().contains("noatsecure"));
        for name in ["enforce", "free", "selinux"] {
            let _ = fs::remove_dir_all(system(name, &[]).path("/"));
        }
    }

    #[test]
    fn a_profile_of_the_file_counts_where_apparmor_runs() {
        let file = std::env::current_exe().unwrap().canonicalize().unwrap();
        let name = file.to_str().unwrap().trim_start_matches('/').replace('/', ".");
        let profile = format!("/etc/apparmor.d/{name}");
        assert_eq!(of_file(&file, &system("off", &[(&profile, "")])), None);
        assert!(of_file(&file, &system("on", &[ENABLED, (&profile, "")])).is_some());
        for name in ["off", "on"] {
            let _ = fs::remove_dir_all(system(name, &[]).path("/"));
        }
    }
}
