//! What small C programs do with sockets, written down call by call: plain, with the library
//! watching, and with every connection promoted. The three transcripts are equal.
//!
//! Each program says in its first lines what it is about; `path: tcp` there says that its
//! connections are to stay on TCP, `also: auto` that they are promoted as by default, too; `spins: US` that it runs once more
//! with waits that look for messages for so long; `promotes: 48` that it runs once more as by default, and so many endpoints are
//! promoted then.
//! TRANSCRIPT=NAME runs one of them.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use monitor::{Access, Listener, Monitor, Options};
use testkit::process::preload_library;

/// A program that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);
/// Programs that run at a time.
const AT_ONCE: usize = 3;

#[test]
fn promoted_connections_behave_as_on_tcp() {
    let compiler = Command::new("cc").arg("--version").output();
    if !compiler.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED promoted_connections_behave_as_on_tcp: no C compiler (cc) is installed");
        return;
    }
    let bench = Bench::new();
    let programs = Mutex::new(programs());
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(source) = programs.lock().unwrap().pop_front() else { return };
                    if let Err(what) = bench.compare(&source) {
                        failures.lock().unwrap().push(format!("== {}\n{what}", source.display()));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} programs differ:\n{}", failures.len(), failures.join("\n"));
}

/// What is documented of socket options is what `kernel_options.c` tries.
#[test]
fn options_that_keep_connections_on_tcp_are_documented() {
    let program = fs::read_to_string(directory().join("kernel_options.c")).expect("readable");
    let tried: Vec<&str> = program
        .lines()
        .filter_map(|line| line.trim().strip_prefix("{OPTION(")?.strip_suffix(")},")?.split(", ").nth(1))
        .collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compatibility.md");
    let document = fs::read_to_string(path).expect("readable");
    let row = document.lines().find(|line| line.contains("stays on TCP (`option`)")).expect("a row");
    let documented: Vec<&str> = row.split('|').nth(1).expect("a cell").trim().split(", ").collect();
    assert_eq!(documented, tried);
    assert!(tried.len() > 10);
}

fn programs() -> VecDeque<PathBuf> {
    let only = std::env::var_os("TRANSCRIPT");
    let chosen = |path: &PathBuf| match &only {
        Some(only) => path.file_stem() == Some(only),
        None => true,
    };
    let mut programs: Vec<PathBuf> = fs::read_dir(directory())
        .expect("the programs are there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension() == Some(OsStr::new("c")) && chosen(path))
        .collect();
    programs.sort();
    assert!(!programs.is_empty(), "no program of that name");
    programs.into()
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")
}

/// A monitor, and room for what is built.
struct Bench {
    room: PathBuf,
}

/// What one run of a program came to.
struct Run {
    transcript: String,
    errors: String,
    log: String,
}

impl Bench {
    fn new() -> Bench {
        let room = std::env::temp_dir().join(format!("megapipe-transcripts-{}", std::process::id()));
        fs::create_dir(&room).expect("a directory");
        let policy = room.join("policy.toml");
        fs::write(&policy, "same_user = true\n").expect("a file");
        let listener = Listener::bind(&room.join("monitor"), Access::Everybody).expect("a monitor listens");
        let options = Options { policy: Some(policy), ..Options::default() };
        // Ends with the test.
        std::thread::spawn(move || Monitor::new(listener, options).and_then(Monitor::run));
        Bench { room }
    }

    fn compare(&self, source: &Path) -> Result<(), String> {
        let text = fs::read_to_string(source).expect("readable");
        let stays = text.contains("path: tcp");
        let also = text.contains("also: auto").then_some("auto");
        let program = self.build(source)?;
        let plain = self.run(&program, None, None)?;
        if plain.transcript.is_empty() {
            return Err("it wrote no transcript".into());
        }
        let number_after = |name: &str| {
            let (_, rest) = text.split_once(name)?;
            rest.split(|c: char| !c.is_ascii_digit()).next()
        };
        let spins = number_after("spins: ");
        let modes = [("observe", None), ("eager", None::<&str>)].into_iter();
        let more = also.map(|mode| (mode, None)).into_iter().chain(spins.map(|spins| ("eager", Some(spins))));
        let promotes = number_after("promotes: ").and_then(|number| number.parse::<u64>().ok());
        let more = more.chain(promotes.map(|_| ("auto", None)));
        // When the monitor answers depends on what else the machine does.
        let mut attempts = if promotes.is_some() { 5 } else { 0 };
        let is_met = |log: &str| promotes.is_none_or(|promotes| told(log).0 >= promotes);
        for (mode, spins) in modes.chain(more) {
            let mut run = self.run(&program, Some(mode), spins)?;
            while mode == "auto" && attempts > 0 && !is_met(&run.log) {
                attempts -= 1;
                if attempts == 0 {
                    return Err(format!("{mode}: too few were promoted\n{}", run.log));
                }
                run = self.run(&program, Some(mode), spins)?;
            }
            if run.transcript != plain.transcript {
                let errors = format!("{}{}", run.errors, run.log);
                return Err(format!("{mode}:\n{}{errors}", difference(&plain.transcript, &run.transcript)));
            }
            let (promoted, bytes) = told(&run.log);
            let wanted = mode != "observe" && !stays;
            if (promoted > 0 && bytes > 0) != wanted {
                return Err(format!("{mode}: {promoted} promoted, {bytes} bytes over memory\n{}", run.log));
            }
        }
        Ok(())
    }

    fn build(&self, source: &Path) -> Result<PathBuf, String> {
        let program = self.room.join(source.file_stem().unwrap_or_default());
        let compiled = Command::new("cc")
            .args([
                "-std=gnu11",
                "-Wall",
                "-Wextra",
                "-O2",
                "-U_FORTIFY_SOURCE",
                "-D_FORTIFY_SOURCE=2",
                "-pthread",
            ])
            .arg("-o")
            .arg(&program)
            .arg(source)
            .output()
            .expect("the compiler runs");
        let said = String::from_utf8_lossy(&compiled.stderr).into_owned();
        if compiled.status.success() { Ok(program) } else { Err(said) }
    }

    fn run(&self, program: &Path, mode: Option<&str>, spins: Option<&str>) -> Result<Run, String> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let file = |kind: &str| self.room.join(format!("{name}.{}.{kind}", mode.unwrap_or("plain")));
        let mut command = Command::new(program);
        for (variable, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("MEGAPIPE_"))
        {
            command.env_remove(variable);
        }
        command.current_dir(&self.room).stdin(Stdio::null());
        command.stdout(fs::File::create(file("out")).expect("a file"));
        command.stderr(fs::File::create(file("err")).expect("a file"));
        if let Some(mode) = mode {
            // Of an earlier attempt.
            let _ = fs::remove_file(file("log"));
            command.env("LD_PRELOAD", preload_library()).env("MEGAPIPE_PROMOTE", mode);
            command.env("MEGAPIPE_MONITOR", self.room.join("monitor"));
            command.envs(spins.map(|spins| ("MEGAPIPE_SPIN", spins)));
            command.env("MEGAPIPE_STATS", "1").env("MEGAPIPE_LOG", file("log"));
        }
        let mut child = command.spawn().expect("the program starts");
        let began = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("a child") {
                break Some(status);
            }
            if began.elapsed() > LIMIT {
                child.kill().expect("it runs");
                child.wait().expect("it was ended");
                break None;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let text = |kind: &str| {
            let mut bytes = Vec::new();
            if let Ok(mut file) = fs::File::open(file(kind)) {
                file.read_to_end(&mut bytes).expect("readable");
            }
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let run = Run { transcript: text("out"), errors: text("err"), log: text("log") };
        let mode = mode.unwrap_or("plain");
        match status {
            Some(status) if status.success() => Ok(run),
            Some(status) => Err(format!("{mode}: {status} after\n{}{}", tail(&run.transcript), run.errors)),
            None => Err(format!("{mode}: it hangs after\n{}{}", tail(&run.transcript), run.errors)),
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // What is left behind costs room, nothing else.
        let _ = fs::remove_dir_all(&self.room);
    }
}

/// Connections that the summaries call promoted, and bytes that they say were sent over memory.
fn told(log: &str) -> (u64, u64) {
    let number_before = |line: &str, word: &str| -> u64 {
        let end = line.find(word).unwrap_or(0);
        line[..end].trim_end().rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    log.lines().fold((0, 0), |(promoted, bytes), line| {
        (promoted + number_before(line, " promoted"), bytes + number_before(line, "bytes sent,"))
    })
}

fn tail(transcript: &str) -> String {
    let lines: Vec<&str> = transcript.lines().collect();
    lines[lines.len().saturating_sub(8)..].iter().map(|line| format!("  {line}\n")).collect()
}

/// The first lines that differ, with what comes before them.
fn difference(plain: &str, other: &str) -> String {
    let (plain, other): (Vec<&str>, Vec<&str>) = (plain.lines().collect(), other.lines().collect());
    let same = plain.iter().zip(&other).take_while(|(plain, other)| plain == other).count();
    let part = |lines: &[&str], mark: char| -> String {
        lines.iter().skip(same).take(6).map(|line| format!("{mark} {line}\n")).collect()
    };
    let before: String =
        plain[same.saturating_sub(4)..same].iter().map(|line| format!("  {line}\n")).collect();
    format!("{before}{}{}", part(&plain, '-'), part(&other, '+'))
}
