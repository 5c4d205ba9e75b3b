//! Clients that other people wrote: libmemcached's tools, and pymemcache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::on_both_engines;
use crate::support::{Server, Skipped, Verdict};

on_both_engines!(
    libmemcached_tools_store_and_fetch,
    memcapable_finds_nothing_amiss,
    memslap_gets_what_it_has_set,
    pymemcache_works,
);

/// The release of pymemcache that the tests were written with.
const PYMEMCACHE: &str = "pymemcache==4.0.0";

/// A tool of libmemcached, which Debian 12 and later call `memc...` and others `mem...`.
struct Tool {
    program: String,
}

impl Tool {
    fn find(name: &str) -> Result<Self, Skipped> {
        let short = format!("mem{name}");
        for program in [format!("memc{name}"), short.clone()] {
            if Command::new(&program).arg("--version").output().is_ok() {
                return Ok(Self { program });
            }
        }
        Err(Skipped(format!("{short} is not installed; install libmemcached-tools")))
    }

    fn run(&self, server: &Server, arguments: &[&str]) -> Output {
        let servers = format!("--servers={}", server.address);
        let mut command = Command::new(&self.program);
        command.arg(servers).args(arguments);
        command.output().expect("the tool was found")
    }

    /// Runs the tool, which has to succeed, and returns what it prints.
    fn succeed(&self, server: &Server, arguments: &[&str]) -> String {
        let output = self.run(server, arguments);
        assert!(output.status.success(), "{} {arguments:?}: {output:?}", self.program);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// A folder for the files of one test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).expect("the target folder can be written");
    folder
}

fn libmemcached_tools_store_and_fetch(engine: &'static str) -> Verdict {
    let [copy, cat, exist, touch] =
        [Tool::find("cp")?, Tool::find("cat")?, Tool::find("exist")?, Tool::find("touch")?];
    let [remove, flush, stat, ping] =
        [Tool::find("rm")?, Tool::find("flush")?, Tool::find("stat")?, Tool::find("ping")?];
    let server = Server::start(engine, "kv", &[])?;
    let folder = folder(&format!("libmemcached-{engine}"));
    let small = folder.join("small");
    let large = folder.join("large");
    let text: String = (0..60_000).map(|number| format!("{number:016}\n")).collect();
    fs::write(&small, "a small file\n").expect("the target folder can be written");
    fs::write(&large, &text).expect("the target folder can be written");
    let [small, large] = [small, large].map(|path| path.to_string_lossy().into_owned());

    ping.succeed(&server, &[]);
    copy.succeed(&server, &[&small, &large]);
    assert_eq!(cat.succeed(&server, &["small"]).trim_end(), "a small file");
    assert_eq!(cat.succeed(&server, &["large"]).trim_end(), text.trim_end());
    exist.succeed(&server, &["small"]);
    assert!(!exist.run(&server, &["none"]).status.success());
    touch.succeed(&server, &["--expire=1000", "small"]);
    exist.succeed(&server, &["small"]);
    remove.succeed(&server, &["small"]);
    assert!(!exist.run(&server, &["small"]).status.success());
    let statistics = stat.succeed(&server, &[]);
    assert!(statistics.contains(&format!("pid: {}", server.pid())), "{statistics}");
    flush.succeed(&server, &[]);
    assert!(!exist.run(&server, &["large"]).status.success());
    Ok(())
}

fn memcapable_finds_nothing_amiss(engine: &'static str) -> Verdict {
    let tool = Tool::find("capable")?;
    let server = Server::start(engine, "kv", &[])?;
    let (host, port) = (server.address.ip().to_string(), server.address.port().to_string());
    let output = Command::new(tool.program)
        .args(["-h", &host, "-p", &port, "-a", "-t", "30"])
        .output()
        .expect("the tool was found");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && report.contains("All tests passed"), "{output:?}");
    Ok(())
}

fn memslap_gets_what_it_has_set(engine: &'static str) -> Verdict {
    let tool = Tool::find("slap")?;
    let server = Server::start(engine, "kv", &[])?;
    for test in ["--test=set", "--test=get", "--test=mget"] {
        tool.succeed(&server, &[test, "--concurrency=4", "--execute-number=500", "--initial-load=500"]);
    }
    Ok(())
}

fn pymemcache_works(engine: &'static str) -> Verdict {
    let python = python()?;
    let server = Server::start(engine, "kv", &[])?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers/pymemcache_client.py");
    let output = Command::new(python)
        .arg(script)
        .args([server.address.ip().to_string(), server.address.port().to_string()])
        .output()
        .expect("the interpreter was found");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// A Python that has pymemcache, installed on first use.
fn python() -> Result<&'static Path, Skipped> {
    static PYTHON: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let python = PYTHON.get_or_init(|| {
        let environment = folder("pymemcache");
        let python = environment.join("bin/python");
        if has_pymemcache(&python) {
            return Ok(python);
        }
        let mut create = Command::new("python3");
        create.args(["-m", "venv"]).arg(&environment);
        succeed(create, "a Python environment cannot be made; install python3-venv")?;
        let mut install = Command::new(&python);
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", PYMEMCACHE]);
        succeed(install, "pymemcache cannot be installed")?;
        Ok(python)
    });
    python.as_deref().map_err(|reason| Skipped(reason.clone()))
}

fn has_pymemcache(python: &Path) -> bool {
    let output = Command::new(python).args(["-c", "import pymemcache"]).output();
    output.is_ok_and(|output| output.status.success())
}

fn succeed(mut command: Command, failure: &str) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let message = String::from_utf8_lossy(&output.stderr);
            Err(format!("{failure} ({})", message.lines().last().unwrap_or("no reason given")))
        }
        Err(error) => Err(format!("{failure} ({error})")),
    }
}
