//! Building C programs against the library of this build, and running them.
#![allow(dead_code)] // each test program uses a part of it

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use testkit::net::Scratch;
use testkit::programs::find;

/// A program that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// One of the two forms of libmegapipe.
pub(crate) struct Library {
    /// Holds libmegapipe.so or libmegapipe.a, and what is built against it.
    pub(crate) directory: Scratch,
    shared: bool,
}

pub(crate) enum Outcome {
    Passed,
    Skipped(String),
    Failed(String),
}

impl Library {
    /// Linked from the static one as `make install` does.
    pub(crate) fn shared() -> Library {
        let directory = Scratch::new();
        let file = directory.join("libmegapipe.so.0");
        let linked = Command::new(root().join("crates/capi/link.sh"))
            .arg(static_library())
            .arg(&file)
            .output()
            .expect("a C compiler links the library");
        assert!(linked.status.success(), "{}", String::from_utf8_lossy(&linked.stderr));
        symlink("libmegapipe.so.0", directory.join("libmegapipe.so")).expect("a link");
        Library { directory, shared: true }
    }

    pub(crate) fn fixed() -> Library {
        Library { directory: Scratch::new(), shared: false }
    }

    /// Installs the library, the header and the pkg-config file, and returns the
    /// prefix.
    pub(crate) fn install(&self) -> PathBuf {
        let prefix = self.directory.join("prefix");
        for part in ["lib/pkgconfig", "include", "examples"] {
            fs::create_dir_all(prefix.join(part)).expect("a directory");
        }
        let capi = root().join("crates/capi");
        for header in ["include/megapipe.h", "include/megapipe_mmsg.h"] {
            fs::copy(capi.join(header), prefix.join(header)).expect("a copy");
        }
        let description = fs::read_to_string(capi.join("megapipe.pc.in"))
            .expect("readable")
            .replace("@PREFIX@", &prefix.display().to_string())
            .replace("@LIBDIR@", &prefix.join("lib").display().to_string())
            .replace("@VERSION@", env!("CARGO_PKG_VERSION"));
        fs::write(prefix.join("lib/pkgconfig/megapipe.pc"), description).expect("a file");
        if self.shared {
            for name in ["libmegapipe.so", "libmegapipe.so.0"] {
                fs::copy(self.directory.join(name), prefix.join("lib").join(name)).expect("a copy");
            }
        } else {
            let slimmed = Command::new(capi.join("slim.sh"))
                .arg(static_library())
                .arg(prefix.join("lib/libmegapipe.a"))
                .status();
            assert!(slimmed.expect("objcopy runs").success());
        }
        prefix
    }

    fn link_arguments(&self) -> Vec<PathBuf> {
        if self.shared {
            let mut search = std::ffi::OsString::from("-L");
            search.push(&*self.directory);
            vec![search.into(), "-lmegapipe".into()]
        } else {
            let mut arguments = vec![static_library()];
            arguments.extend(["-lgcc_s", "-lpthread", "-ldl", "-lm"].map(PathBuf::from));
            arguments
        }
    }
}

/// The workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace is there")
}

/// What cargo built for this test run: beside the test itself, and the newest of its name.
pub(crate) fn static_library() -> PathBuf {
    let test = std::env::current_exe().expect("the test knows its path");
    let built = fs::read_dir(test.parent().expect("a directory")).expect("readable");
    built
        .map(|entry| entry.expect("readable").path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("libmegapipe_c") && name.ends_with(".a")
        })
        .max_by_key(|path| path.metadata().and_then(|file| file.modified()).ok())
        .expect("cargo builds the static library for the tests")
}

/// Every test program.
pub(crate) fn programs() -> Vec<PathBuf> {
    let directory = root().join("crates/capi/tests/c");
    let mut sources: Vec<PathBuf> = fs::read_dir(directory)
        .expect("the programs are there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension() == Some(OsStr::new("c")))
        .collect();
    sources.sort();
    sources
}

pub(crate) fn engines() -> Vec<&'static str> {
    match std::env::var("MEGAPIPE_ENGINE").as_deref() {
        Ok("uring") => vec!["uring"],
        Ok("epoll") => vec!["epoll"],
        _ => vec!["uring", "epoll"],
    }
}

pub(crate) fn has_program(name: &str) -> bool {
    find(name).is_some()
}

/// Builds one program; the compiler's words if it refuses.
pub(crate) fn build(source: &Path, library: &Library) -> Result<PathBuf, String> {
    let program = library.directory.join(source.file_stem().unwrap_or_default());
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-I"])
        .arg(root().join("crates/capi/include"))
        .arg(source)
        .arg("-o")
        .arg(&program)
        .args(library.link_arguments())
        .arg("-lpthread")
        .output()
        .map_err(|error| format!("cc: {error}"))?;
    if compiled.status.success() {
        Ok(program)
    } else {
        Err(format!("{}: {}", source.display(), String::from_utf8_lossy(&compiled.stderr)))
    }
}

/// Runs one program on one engine, under `wrapper` if that names one.
pub(crate) fn run(program: &Path, library: &Library, engine: &str, wrapper: &[&str]) -> Outcome {
    let mut command = match wrapper.split_first() {
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
        None => Command::new(program),
    };
    let child = command
        .env("MEGAPIPE_ENGINE", engine)
        .env("LD_LIBRARY_PATH", &*library.directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return Outcome::Failed(format!("does not start: {error}")),
    };
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if start.elapsed() < LIMIT => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                // It may end by itself just now.
                let _ = child.kill();
                let _ = child.wait();
                return Outcome::Failed(format!("still ran after {} s", LIMIT.as_secs()));
            }
        }
    };
    let (mut out, mut err) = (String::new(), String::new());
    let _ = child.stdout.take().map(|mut pipe| pipe.read_to_string(&mut out));
    let _ = child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut err));
    match status.code() {
        Some(0) => Outcome::Passed,
        Some(77) => Outcome::Skipped(out.trim_start_matches("SKIPPED: ").trim().to_owned()),
        _ => Outcome::Failed(format!("{status}: {out}{err}")),
    }
}
