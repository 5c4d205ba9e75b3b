//! Which monitor is found or started, for root and for users, and whom a program trusts.
//! `/run` is the test's own.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::netns::enter_own_run;
use testkit::process::{Fosterling, PATIENCE, copy_program, listening_monitor, until};

use crate::promotion::{EndOf, PAIR, until_promoted};
use crate::support::{PROGRAM, Place, clean, library, output, text};

pub(crate) const SYSTEM: &str = "/run/megapipe/monitor.sock";
pub(crate) const ROOT: &str = "/run/megapipe/root.sock";

/// Two users that no test beside this one has, whose directories lie in the same `/tmp`. User namespaces of containers
/// have numbers up to 65,535.
fn users() -> [u32; 2] {
    [0, 1].map(|user| 20_000 + (2 * std::process::id() + user) % 40_000)
}

/// Where a user's own monitor would be.
fn directory_of(user: u32) -> PathBuf {
    format!("/tmp/megapipe-{user}").into()
}

/// False: the test has been run in another process, or cannot be run here.
pub(crate) fn enter(test: &str) -> bool {
    for (path, is_there) in [("/usr/bin/python3", true), ("/etc/megapipe/monitor.toml", false)] {
        if Path::new(path).exists() != is_there {
            println!("SKIPPED {test}: {path} must {}exist", if is_there { "" } else { "not " });
            return false;
        }
    }
    enter_own_run(test, 5 * PATIENCE)
}

/// The program and the library where every user can execute them.
pub(crate) fn installed(place: &Place) -> PathBuf {
    let copy = place.file("megapipe");
    copy_program(PROGRAM.as_ref(), &copy);
    copy_program(library(), &place.file("libmegapipe_preload.so"));
    copy
}

/// A pair of connected ends under `megapipe run`, without a monitor that a variable names.
fn pair(program: &Path) -> Command {
    let mut command = clean(program);
    command.args(["run", "--promote", "eager", "--stats", "/usr/bin/python3", "-c", PAIR, "exit"]);
    command.env_remove("MEGAPIPE_MONITOR").env_remove("XDG_RUNTIME_DIR").current_dir("/");
    command
}

fn as_user(mut command: Command, user: u32) -> Command {
    command.uid(user).gid(user);
    command
}

/// A monitor of this user at `socket`, which everybody can reach.
fn monitor_of(user: u32, program: &Path, socket: &Path) -> Fosterling {
    let mut command = as_user(clean(program), user);
    let monitor = listening_monitor(command.args(["monitor", "--socket"]).arg(socket));
    fs::set_permissions(socket, PermissionsExt::from_mode(0o666)).unwrap();
    monitor
}

#[test]
fn root_needs_no_policy_and_no_variable() {
    if !enter("places::root_needs_no_policy_and_no_variable") {
        return;
    }
    let place = Place::new();
    let runtime = place.file("runtime");
    fs::create_dir(&runtime).unwrap();
    let [user, _] = users();
    chown(&runtime, Some(user), Some(user)).unwrap();
    // As sudo -E and su leave it.
    let monitor = EndOf(ROOT.into());
    let run = || text(&output(pair(PROGRAM.as_ref()).env("XDG_RUNTIME_DIR", &runtime)).stderr);
    assert_no_other_complaint(&run());
    let said = until_promoted(2, run);
    assert!(!said.contains("megapipe run:"), "nothing to complain of: {said}");
    assert_eq!(fs::read_dir(&runtime).unwrap().count(), 0, "the user's directory stays his");
    let mode = |path: &str| {
        let found = fs::metadata(path).unwrap();
        (found.uid(), found.mode() & 0o777)
    };
    assert_eq!((mode(ROOT), mode("/run/megapipe")), ((0, 0o600), (0, 0o755)));
    assert!(!Path::new(SYSTEM).exists());
    let of_process = |file| fs::read_to_string(format!("/proc/{}/{file}", monitor.pid().unwrap())).unwrap();
    assert_eq!(of_process("comm"), "megapipe\n");
    let command = of_process("cmdline");
    assert!(command.starts_with("megapipe\0monitor\0--on-demand\0"), "{command:?}");
}

/// A slow machine may start a monitor later than `megapipe run` waits; then it says so, and nothing else.
fn assert_no_other_complaint(said: &str) {
    let mut complaints = said.lines().filter(|line| line.starts_with("megapipe run:"));
    assert!(complaints.all(|line| line.contains(NOT_YET)), "{said}");
}

const NOT_YET: &str = "a monitor was started and does not answer yet";

/// A monitor that holds the lock and does not listen yet, as on a busy machine, has not failed.
#[test]
fn a_monitor_that_takes_its_time_is_not_called_failed() {
    if !enter("places::a_monitor_that_takes_its_time_is_not_called_failed") {
        return;
    }
    fs::create_dir("/run/megapipe").unwrap();
    let lock = fs::File::create(format!("{ROOT}.lock")).unwrap();
    lock.try_lock().unwrap();
    let said = text(&output(&mut pair(PROGRAM.as_ref())).stderr);
    assert!(said.contains(NOT_YET) && said.contains("2 connections, 0 promoted"), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
    drop(lock);
    let _monitor = EndOf(ROOT.into());
    until_promoted(2, || text(&output(&mut pair(PROGRAM.as_ref())).stderr));
}

#[test]
fn a_monitor_that_fails_is_named_with_its_cause() {
    if !enter("places::a_monitor_that_fails_is_named_with_its_cause") {
        return;
    }
    fs::create_dir_all(ROOT).unwrap();
    let said = text(&output(&mut pair(PROGRAM.as_ref())).stderr);
    assert!(said.contains("none could be started, so connections stay on TCP"), "{said}");
    let cause = format!("the monitor cannot listen at {ROOT}: ");
    assert!(said.contains(&cause) && said.contains("2 connections, 0 promoted"), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
}

/// The monitor's starter gets no status of its children then.
#[test]
fn a_monitor_is_started_where_sigchld_is_ignored() {
    if !enter("places::a_monitor_is_started_where_sigchld_is_ignored") {
        return;
    }
    let mut command = pair(PROGRAM.as_ref());
    // SAFETY: signal(2) may be called between fork and execve (signal-safety(7)).
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            Ok(())
        });
    }
    let said = text(&output(&mut command).stderr);
    let _monitor = EndOf(ROOT.into());
    assert_no_other_complaint(&said);
}

/// Those that lose the race find the monitor of the one that wins, which keeps nothing open that
/// was theirs.
#[test]
fn several_at_once_start_one_monitor() {
    if !enter("places::several_at_once_start_one_monitor") {
        return;
    }
    let (mut reader, writer) = std::io::pipe().unwrap();
    rustix::io::fcntl_setfd(&writer, rustix::io::FdFlags::empty()).unwrap();
    let commands = (0..8).map(|_| {
        let mut command = pair(PROGRAM.as_ref());
        std::thread::spawn(move || text(&output(&mut command).stderr))
    });
    let said: Vec<String> = commands.collect::<Vec<_>>().into_iter().map(|run| run.join().unwrap()).collect();
    let monitor = EndOf(ROOT.into());
    assert!(monitor.pid().is_some());
    // Each `/run` of a test beside this one is a file system of its own.
    let place = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let is_ours = |process: &fs::DirEntry| {
        let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
        command.starts_with(b"megapipe\0monitor\0")
            && place(&process.path().join("root/run/megapipe")) == place("/run/megapipe".as_ref())
    };
    // Those that lost the race end.
    let running = || fs::read_dir("/proc").unwrap().flatten().filter(is_ours).count();
    until("one monitor", || (running() == 1).then_some(()));
    said.iter().for_each(|said| assert_no_other_complaint(said));
    drop(writer);
    assert_eq!(std::io::Read::read(&mut reader, &mut [0]).unwrap(), 0);
}

/// Where `megapipe run` can start no monitor, `megapipe doctor` has its cause and its remedy, and fails.
fn doctor_says_the_same(mut command: Command, said_by_run: &str) {
    command.args(["doctor", "--json", "/usr/bin/python3"]).env_remove("MEGAPIPE_MONITOR").current_dir("/");
    let ended = output(command.env_remove("XDG_RUNTIME_DIR"));
    let report: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let reached = findings.iter().find(|finding| finding["name"] == "reached").unwrap();
    assert_eq!((ended.status.code(), &reached["verdict"]), (Some(1), &"missing".into()), "{reached}");
    for key in ["instead", "remedy"] {
        assert!(said_by_run.contains(reached[key].as_str().unwrap()), "{key} of {reached}: {said_by_run}");
    }
    assert_eq!(report["next"], reached["remedy"], "{report}");
}

#[test]
fn a_run_that_is_read_only_costs_acceleration_and_one_line() {
    if !enter("places::a_run_that_is_read_only_costs_acceleration_and_one_line") {
        return;
    }
    let remounted = Command::new("mount").args(["-o", "remount,ro", "/run"]).status().unwrap();
    assert!(remounted.success());
    let said = text(&output(&mut pair(PROGRAM.as_ref())).stderr);
    doctor_says_the_same(clean(PROGRAM), &said);
    assert!(
        said.contains("connections stay on TCP: the directory /run/megapipe cannot be used: Read-only"),
        "{said}"
    );
    assert!(said.contains("MEGAPIPE_MONITOR") && said.contains("2 connections, 0 promoted"), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
}

#[test]
fn a_squatted_directory_costs_acceleration_and_one_line() {
    if !enter("places::a_squatted_directory_costs_acceleration_and_one_line") {
        return;
    }
    let place = Place::new();
    let program = installed(&place);
    let [user, stranger] = users();
    let directory = &directory_of(user);
    let refused = || {
        let said = text(&output(&mut as_user(pair(&program), user)).stderr);
        assert!(said.contains("2 connections, 0 promoted"), "{said}");
        assert_eq!(said.lines().count(), 2, "{said}");
        doctor_says_the_same(as_user(clean(&program), user), &said);
        said
    };
    let remedy = format!("remove it (rm -r {}", directory.display());

    std::os::unix::fs::symlink("/run", directory).unwrap();
    let said = refused();
    fs::remove_file(directory).unwrap();
    assert!(said.contains(&remedy), "a link: {said}");

    fs::write(directory, "").unwrap();
    let said = refused();
    fs::remove_file(directory).unwrap();
    assert!(said.contains(&remedy), "a file: {said}");

    fs::create_dir(directory).unwrap();
    chown(directory, Some(stranger), Some(stranger)).unwrap();
    let said = refused();
    // One that listens there, too.
    fs::set_permissions(directory, PermissionsExt::from_mode(0o755)).unwrap();
    let monitor = monitor_of(stranger, &program, &directory.join("monitor.sock"));
    let listens = refused();
    drop(monitor);
    fs::remove_dir_all(directory).unwrap();
    assert!(said.contains(&remedy), "another's: {said}");
    assert!(listens.contains(&format!("runs as user {stranger}")), "{listens}");

    fs::create_dir(directory).unwrap();
    chown(directory, Some(user), Some(user)).unwrap();
    fs::set_permissions(directory, PermissionsExt::from_mode(0o777)).unwrap();
    let said = refused();
    fs::remove_dir(directory).unwrap();
    assert!(said.contains(&remedy), "open to all: {said}");
}

/// At the system's place, too. One that the user names may be anybody's.
#[test]
fn only_roots_or_ones_own_monitor_is_trusted() {
    if !enter("places::only_roots_or_ones_own_monitor_is_trusted") {
        return;
    }
    let place = Place::new();
    let program = installed(&place);
    let [_, stranger] = users();
    fs::create_dir("/run/megapipe").unwrap();
    chown("/run/megapipe", Some(stranger), Some(stranger)).unwrap();
    let _monitor = monitor_of(stranger, &program, SYSTEM.as_ref());
    let said = text(&output(&mut pair(&program)).stderr);
    assert!(
        said.contains(&format!("runs as user {stranger}")) && said.contains("2 connections, 0 promoted"),
        "{said}"
    );
    assert!(said.contains(&format!("MEGAPIPE_MONITOR={SYSTEM}")), "{said}");
    assert!(!Path::new(ROOT).exists());
    // It is asked, and its policy is for its own user.
    let said = text(&output(pair(&program).env("MEGAPIPE_MONITOR", SYSTEM)).stderr);
    assert!(said.contains("2 policy") && !said.contains("megapipe run:"), "{said}");
}

/// One monitor of the system is found by every user without a variable.
#[test]
fn the_systems_monitor_serves_all_users() {
    if !enter("places::the_systems_monitor_serves_all_users") {
        return;
    }
    let place = Place::new();
    let program = installed(&place);
    fs::write(place.file("policy"), "same_user = true\n").unwrap();
    let mut command = clean(&program);
    command.args(["monitor", "--config"]).arg(place.file("policy")).env_remove("MEGAPIPE_MONITOR");
    let _monitor = listening_monitor(&mut command);
    for user in [0].into_iter().chain(users()) {
        until_promoted(2, || text(&output(&mut as_user(pair(&program), user)).stderr));
    }
    assert!(!Path::new(ROOT).exists());
    for user in users() {
        assert!(!directory_of(user).exists());
    }
}

/// The loader keeps LD_PRELOAD out of such programs, but not a library that they are linked with or
/// that the administrator preloads into all.
#[test]
fn a_program_with_more_rights_than_its_caller_ignores_the_environment() {
    if !enter("places::a_program_with_more_rights_than_its_caller_ignores_the_environment") {
        return;
    }
    let place = Place::new();
    let program = installed(&place);
    let [user, _] = users();
    chown(&program, Some(user), Some(user)).unwrap();
    let asked = |mode: u32| {
        fs::set_permissions(&program, PermissionsExt::from_mode(mode)).unwrap();
        let mut command = clean(&program);
        command.args(["top", "--once"]).env("MEGAPIPE_MONITOR", "/run/named.sock");
        text(&output(&mut command).stderr)
    };
    assert!(asked(0o755).contains("/run/named.sock"));
    let said = asked(0o4755);
    let socket = directory_of(user).join("monitor.sock");
    assert!(said.contains(socket.to_str().unwrap()) && !said.contains("named"), "{said}");
}
