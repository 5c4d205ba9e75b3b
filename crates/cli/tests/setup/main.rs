//! `megapipe setup` on a host whose /etc and /run are the test's own. There is no systemd; scripts/systemd-test.sh has that.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use testkit::net::Scratch;
use testkit::process::{Fosterling, copy_program, listening_monitor, preload_library, until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_megapipe");
const NOBODY: u32 = 65_534;

const PASSWD: &str = "root:x:0:0::/root:/bin/sh
postgres:x:26:26::/:/bin/false
www-data:x:33:33::/:/bin/false
42:x:1042:33::/:/bin/false
";

/// Two directories that programs have as /etc and /run.
struct Host(Scratch);

impl Host {
    /// `None`, said with the test's name, where the test cannot run.
    fn new(test: &str) -> Option<Host> {
        let mount = |arguments: &[&str]| {
            let status =
                Command::new("unshare").args(["--mount", "mount", "--bind"]).args(arguments).status();
            status.is_ok_and(|status| status.success())
        };
        if !rustix::process::geteuid().is_root() || !mount(&["/tmp", "/run"]) {
            println!("SKIPPED {test}: only root mounts directories of its own (unshare, mount)");
            return None;
        }
        let path = Scratch::new();
        for directory in ["etc", "run"] {
            fs::create_dir(path.join(directory)).unwrap();
            fs::set_permissions(path.join(directory), fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(path.join("etc/passwd"), PASSWD).unwrap();
        fs::write(path.join("etc/nsswitch.conf"), "passwd: files\n").unwrap();
        Some(Host(path))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("unshare");
        let script = "mount --bind \"$0/etc\" /etc && mount --bind \"$0/run\" /run && exec \"$@\"";
        command.args(["--mount", "sh", "-c", script]).arg(&*self.0).arg(program);
        for name in ["MEGAPIPE_MONITOR", "MEGAPIPE_LOG", "XDG_RUNTIME_DIR", "LD_PRELOAD"] {
            command.env_remove(name);
        }
        command.stdin(Stdio::null());
        command
    }

    /// The exit status, and what was printed.
    fn setup(&self, arguments: &[&str]) -> (Option<i32>, String) {
        said(self.command(PROGRAM).arg("setup").args(arguments).output().unwrap())
    }

    fn policy(&self) -> PathBuf {
        self.0.join("etc/megapipe/monitor.toml")
    }

    /// The policy without setup's comments.
    fn rules(&self) -> String {
        let text = fs::read_to_string(self.policy()).unwrap();
        let lines = text.lines().filter_map(|line| line.split('#').next());
        lines.map(str::trim).collect::<Vec<_>>().join("\n").trim().to_owned()
    }
}

fn said(output: Output) -> (Option<i32>, String) {
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn each_setup_adds_to_those_before() {
    let Some(host) = Host::new("each_setup_adds_to_those_before") else { return };
    let (status, text) = host.setup(&[]);
    assert!(
        status == Some(0) && text.contains("includes root") && text.contains("megapipe monitor"),
        "{text}"
    );
    assert_eq!(host.rules(), "same_user = true");
    assert_eq!(fs::metadata(host.policy()).unwrap().permissions().mode() & 0o777, 0o644);

    let pair = |one, other| format!("{{ one = {{ uid = [{one}] }}, other = {{ uid = [{other}] }} }},\n");
    let policy = |pairs: &[String]| format!("same_user = true\nallow = [\n{}]", pairs.concat());
    let both = policy(&[pair(26, 33)]);
    let (status, text) = host.setup(&["--allow", "postgres:www-data"]);
    assert!(status == Some(0) && text.contains("postgres (26) and www-data (33)"), "{text}");
    assert_eq!(host.rules(), both);

    // The same again, the other way round, or without a word: nothing is written.
    let before = fs::metadata(host.policy()).unwrap().modified().unwrap();
    for again in [&["--allow", "postgres:www-data"][..], &["--allow", "33:26"], &[]] {
        let (status, text) = host.setup(again);
        assert!(status == Some(0) && text.contains("already"), "{again:?}: {text}");
    }
    assert_eq!((host.rules(), fs::metadata(host.policy()).unwrap().modified().unwrap()), (both, before));

    // A user is called 42; the number 77 has no name.
    let (status, text) = host.setup(&["--allow", "42", "--allow", "77:root"]);
    assert!(status == Some(0) && text.contains("with each other"), "{text}");
    assert_eq!(host.rules(), policy(&[pair(26, 33), pair(1042, 1042), pair(77, 0)]));
}

#[test]
fn an_unknown_user_is_an_error() {
    let Some(host) = Host::new("an_unknown_user_is_an_error") else { return };
    let (status, text) = host.setup(&["--allow", "postgres", "--allow", "postgres:www-dta"]);
    assert!(status == Some(1) && text.contains("'www-dta'") && text.contains("getent passwd"), "{text}");
    assert!(!host.policy().exists(), "nothing is done by halves");
    for nonsense in ["a:b:c", ":", "", "postgres:"] {
        assert_eq!(host.setup(&["--allow", nonsense]).0, Some(2), "{nonsense}");
    }
    assert_eq!(host.setup(&["--allow", "4294967295"]).0, Some(1));
}

/// Each byte of a policy can be somebody's: what setup did not write it neither changes nor removes.
#[test]
fn what_somebody_else_wrote_stays() {
    let Some(host) = Host::new("what_somebody_else_wrote_stays") else { return };
    host.setup(&["--allow", "postgres:www-data"]);
    let ours = fs::read(host.policy()).unwrap();
    let mut others = vec![b"same_user = true\n".to_vec(), Vec::new(), b"\xff\n".to_vec()];
    others.extend((0..ours.len()).step_by(37).map(|at| [&ours[..at], b"#", &ours[at..]].concat()));
    others.extend([[&ours[..], b"\n"].concat(), ours[..ours.len() - 2].to_vec()]);
    for text in others {
        fs::write(host.policy(), &text).unwrap();
        for arguments in [&[][..], &["--allow", "www-data"], &["--undo"]] {
            let (status, said) = host.setup(arguments);
            let shown = String::from_utf8_lossy(&text);
            assert_eq!(status, Some(1), "{arguments:?} over {shown}: {said}");
            let remedy = match arguments {
                [] => "same_user = true",
                ["--undo"] => "rm /etc/megapipe/monitor.toml",
                _ => "[[allow]] # programs of www-data (33)",
            };
            assert!(said.contains(remedy), "{arguments:?}: {said}");
            assert_eq!(fs::read(host.policy()).unwrap(), text);
        }
    }
    // What it says to add is a policy.
    let (_, said) = host.setup(&["--allow", "www-data:postgres"]);
    let table = said.split_once("[[allow]]").unwrap().1;
    fs::write(host.policy(), format!("[[allow]]{table}")).unwrap();
    let mut monitor = host.command(PROGRAM);
    monitor.args(["monitor", "--on-demand", "--linger", "0", "--config", "/etc/megapipe/monitor.toml"]);
    let (status, said) = self::said(monitor.output().unwrap());
    assert_eq!(status, Some(0), "{said}");
    // A link is nobody's to replace.
    fs::remove_file(host.policy()).unwrap();
    std::os::unix::fs::symlink("/nowhere", host.policy()).unwrap();
    assert_eq!(host.setup(&[]).0, Some(1));
    assert!(host.policy().is_symlink());
}

#[test]
fn undo_removes_what_setup_wrote_and_shows_what_runs() {
    let Some(host) = Host::new("undo_removes_what_setup_wrote_and_shows_what_runs") else { return };
    let before = fs::read_dir(host.0.join("etc")).unwrap().count();
    let (status, text) = host.setup(&["--undo"]);
    assert!(status == Some(0) && text.contains("there is no"), "{text}");
    host.setup(&[]);
    let (mut monitor, mut program) = (host.command(PROGRAM), host.command(PROGRAM));
    let _monitor = listening_monitor(monitor.arg("monitor"));
    let (status, text) = host.setup(&[]);
    assert!(status == Some(0) && text.contains("the monitor at /run/megapipe/monitor.sock (pid"), "{text}");
    let Ok(true) = Command::new("python3").arg("--version").output().map(|output| output.status.success())
    else {
        return println!("SKIPPED undo_removes_what_setup_wrote_and_shows_what_runs: no python3");
    };
    preload_library();
    let source = "import socket, time
listener = socket.create_server((\"127.0.0.1\", 0))
client = socket.create_connection(listener.getsockname())
server = listener.accept()[0]
while True:
    client.sendall(b'a')
    server.recv(1)
    time.sleep(0.01)";
    program.args(["run", "--promote", "eager", "--", "python3", "-c", source]);
    let mut program = Fosterling::start(program.stderr(Stdio::null()));
    let pid = format!("(pid {}, user root (0))", program.child().id());
    // The next one has nothing to remove, and says what runs all the same.
    let text = until("the program has the library", || {
        let (status, text) = host.setup(&["--undo"]);
        assert_eq!(status, Some(0), "{text}");
        text.contains(&pid).then_some(text)
    });
    assert!(text.contains("until they are started anew"), "{text}");
    assert_eq!(fs::read_dir(host.0.join("etc")).unwrap().count(), before);
    program.kill();
}

/// The monitor of the systemd unit has no capabilities.
const WITHOUT_CAPABILITIES: [&str; 3] = ["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"];

#[test]
fn doctor_says_what_the_policy_allows() {
    let Some(host) = Host::new("doctor_says_what_the_policy_allows") else { return };
    preload_library();
    let copy = host.0.join("megapipe");
    copy_program(PROGRAM.as_ref(), &copy);
    let library = Path::new(PROGRAM).with_file_name("libmegapipe_preload.so");
    copy_program(&library, &host.0.join("libmegapipe_preload.so"));
    let mut monitor = host.command("setpriv");
    let _monitor = listening_monitor(monitor.args(WITHOUT_CAPABILITIES).arg(PROGRAM).arg("monitor"));
    let doctor = |user: &str| {
        let mut command = host.command("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups"]).arg(&copy);
        said(command.args(["doctor", "/usr/bin/env"]).output().unwrap())
    };
    let pair = |one, other| format!("[[allow]]\none = {{ uid = [{one}] }}\nother = {{ uid = [{other}] }}\n");
    fs::create_dir(host.0.join("etc/megapipe")).unwrap();
    let rule = pair(26, 33);
    let others = pair(26, 33) + &pair(26, 26) + &pair(26, 0);
    let both = format!("same_user = true\n{rule}");
    let by_port = pair(26, 33) + "ports = [80]\n";
    let by_rule_alone = "only by `same_user = true` or an allow rule";
    for (policy, user, status, lines) in [
        ("same_user = true\n", "26", 0, &["postgres (26) with: itself"][..]),
        ("same_user = true\n", "0", 0, &["root (0) with: itself"]),
        (&rule, "26", 0, &["postgres (26) with: www-data (33)"]),
        (&both, "26", 0, &["postgres (26) with: itself, www-data (33)"]),
        (&both, "1042", 0, &["42 (1042) with: itself"]),
        (&others, "26", 0, &["postgres (26) with: itself, root (0), www-data (33)"]),
        (&others, "0", 0, &["root (0) with: postgres (26)", by_rule_alone]),
        (&rule, "0", 1, &["root (0) with: nobody", by_rule_alone, "next: sudo megapipe setup"]),
        (&rule, "1042", 1, &["42 (1042) with: nobody", "next: sudo megapipe setup --allow 42"]),
        (&by_port, "26", 0, &["postgres (26) with: nobody", "1 rule depends on"]),
        ("same_user = maybe\n", "26", 1, &["monitor.toml", "next: correct /etc/megapipe/monitor.toml"]),
    ] {
        fs::write(host.policy(), policy).unwrap();
        let (found, text) = doctor(user);
        assert_eq!(found, Some(status), "{policy} for {user}: {text}");
        assert!(text.contains("reached  /run/megapipe/monitor.sock, of user root (0)"), "{text}");
        for line in lines {
            let is_there = text.lines().any(|found| found.trim() == *line) || !line.contains(" with: ");
            assert!(is_there && text.contains(line), "{line}, {policy} for {user}: {text}");
        }
    }
}

/// The policy was removed by hand, and a monitor that no service manager started goes on.
#[test]
fn undo_says_what_still_runs() {
    let Some(host) = Host::new("undo_says_what_still_runs") else { return };
    for setup in [true, false] {
        if setup {
            host.setup(&[]);
        }
        let mut monitor = host.command(PROGRAM);
        let mut monitor = listening_monitor(monitor.arg("monitor"));
        let stop = format!("to stop it: kill {}", monitor.child().id());
        let text = until("the monitor answers", || {
            let (status, text) = host.setup(&["--undo"]);
            assert_eq!(status, Some(0), "{text}");
            text.contains("monitor.sock (pid").then_some(text)
        });
        assert!(text.contains(&stop), "{text}");
        monitor.kill();
        let _ = fs::remove_file(host.0.join("run/megapipe/monitor.sock"));
        let (_, text) = host.setup(&["--undo"]);
        assert!(text.contains("there is no /etc/megapipe/monitor.toml") && !text.contains("kill"), "{text}");
    }
}

#[test]
fn others_are_told_what_to_type() {
    let directory = Scratch::new();
    let copy = directory.join("megapipe");
    copy_program(PROGRAM.as_ref(), &copy);
    for arguments in [&[][..], &["--undo"], &["--allow", "a:b", "--allow", "c"]] {
        let mut command = Command::new(&copy);
        command.arg("setup").args(arguments).current_dir("/");
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let (status, text) = said(command.output().unwrap());
        let typed = ["sudo megapipe setup"].iter().chain(arguments).copied().collect::<Vec<_>>().join(" ");
        assert!(status == Some(1) && text.trim().ends_with(&typed) && text.lines().count() == 1, "{text}");
    }
}
