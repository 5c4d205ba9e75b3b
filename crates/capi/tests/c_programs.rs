//! The C programs: one for each call of megapipe.h and some for what several calls
//! promise together. Each is built against the shared library and runs on both engines (or
//! on the one that MEGAPIPE_ENGINE names); those that valgrind watches against the static one.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

mod support;

use support::{Library, Outcome, build, engines, has_program, programs, root, run};

/// Valgrind takes a second for what takes a moment; these move memory between a program,
/// the library and the kernel.
const WATCHED: [&str; 8] = [
    "mp_close",
    "mp_destroy",
    "mp_read_stream",
    "mp_readv",
    "mp_unregister",
    "mp_write_buffer",
    "mp_write_quiet",
    "thread_exit",
];

#[test]
fn programs_pass_with_the_shared_library() {
    run_all(&Library::shared(), &programs(), &[]);
}

#[test]
fn programs_are_clean_under_valgrind() {
    if !has_program("valgrind") {
        println!("SKIPPED programs_are_clean_under_valgrind: valgrind is not installed");
        return;
    }
    // Valgrind does not see what a ring writes, and would call it uninitialised.
    let options =
        ["valgrind", "--quiet", "--error-exitcode=99", "--undef-value-errors=no", "--leak-check=no"];
    let watched: Vec<PathBuf> = programs()
        .into_iter()
        .filter(|source| WATCHED.iter().any(|name| source.file_stem() == Some(OsStr::new(name))))
        .collect();
    assert_eq!(watched.len(), WATCHED.len());
    run_all(&Library::fixed(), &watched, &options);
}

#[test]
fn examples_do_what_they_say() {
    if !has_program("make") || !has_program("pkg-config") {
        println!("SKIPPED examples_do_what_they_say: make or pkg-config is not installed");
        return;
    }
    let library = Library::shared();
    let examples = root().join("examples/c");
    make_test(&library, &examples);
    for source in fs::read_dir(&examples).expect("examples are there") {
        let path = source.expect("readable").path();
        if path.extension() == Some(OsStr::new("c")) {
            let lines = fs::read_to_string(&path).expect("readable").lines().count();
            assert!(lines <= 120, "{} has {lines} lines", path.display());
        }
    }
}

#[test]
fn memcached_runs_on_channels() {
    ported("memcached", "memcached", "/usr/include/event2/event.h", "libevent-dev");
}

/// memcached ends before it serves: the test waited for it, and hid what the loader had said.
#[test]
fn a_port_says_what_the_loader_lacks() {
    const NAME: &str = "a_port_says_what_the_loader_lacks";
    if let Some(lacks) = ["memcached", "python3", "cc"].into_iter().find(|program| !has_program(program)) {
        println!("SKIPPED {NAME}: {lacks} is not installed");
        return;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(NAME);
    fs::create_dir_all(&folder).expect("a directory");
    let made = |name: &str, text: &str, needed: Option<&Path>| {
        let (source, library) = (folder.join("source.c"), folder.join(name));
        fs::write(&source, text).expect("writable");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .args(needed)
            .status();
        assert!(built.expect("cc runs").success());
        library
    };
    let needed = made("libmegapipe-absent.so", "int mp_absent(void) { return 0; }\n", None);
    let text = "int mp_absent(void);\nint mp_port(void) { return mp_absent(); }\n";
    let preload = made("port.so", text, Some(&needed));
    fs::remove_file(&needed).expect("it was there");
    let tried = Command::new("python3")
        .arg(root().join("examples/memcached/test.py"))
        .arg(preload)
        .output()
        .expect("python3 runs");
    let said = String::from_utf8_lossy(&tried.stderr);
    assert!(!tried.status.success() && said.contains("libmegapipe-absent.so: cannot open"), "{said}");
}

#[test]
fn nginx_runs_on_channels() {
    ported("nginx", "nginx", "/usr/share/nginx/src/configure", "nginx-dev");
}

/// Builds the port of a distribution's server, and tries it there.
fn ported(name: &str, program: &str, file: &str, package: &str) {
    let lacks = [program, "make", "pkg-config", "python3"].into_iter().find(|program| !has_program(program));
    let lacks = lacks.or((!Path::new(file).exists()).then_some(package));
    if let Some(lacks) = lacks {
        println!("SKIPPED {name}_runs_on_channels: {lacks} is not installed");
        return;
    }
    make_test(&Library::shared(), &root().join("examples").join(name));
}

/// `make test` in a folder of examples, against an installed library.
fn make_test(library: &Library, examples: &Path) {
    let prefix = library.install();
    let made = Command::new("make")
        .args(["--no-print-directory", "-C"])
        .arg(examples)
        .arg(format!("BUILD={}", prefix.join("examples").display()))
        .arg("test")
        .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
        .env("LD_LIBRARY_PATH", prefix.join("lib"))
        .output()
        .expect("make runs");
    let text = String::from_utf8_lossy(&made.stdout);
    for line in text.lines().filter(|line| line.starts_with("SKIPPED")) {
        println!("{line}");
    }
    assert!(made.status.success(), "{text}{}", String::from_utf8_lossy(&made.stderr));
}

#[test]
fn the_program_in_the_documentation_compiles() {
    let page = fs::read_to_string(root().join("docs/c.md")).expect("readable");
    let (_, program) = page.split_once("```c\n").expect("a program in C");
    let (program, _) = program.split_once("```").expect("its end");
    let library = Library::shared();
    let source = library.directory.join("documentation.c");
    fs::write(&source, program).expect("a file");
    if let Err(message) = build(&source, &library) {
        panic!("{message}");
    }
}

/// With the compiler's own libraries left to the compiler: it knows their static form.
#[test]
fn pkg_config_tells_what_a_static_link_needs() {
    const NAME: &str = "pkg_config_tells_what_a_static_link_needs";
    if !has_program("pkg-config") {
        println!("SKIPPED {NAME}: pkg-config is not installed");
        return;
    }
    let library = Library::fixed();
    let empty = library.directory.join("empty.c");
    fs::write(&empty, "int main(void) { return 0; }\n").expect("a file");
    let compile = |source: &Path, arguments: &[String]| {
        let program = source.with_extension("out");
        let compiled = Command::new("cc").arg(source).arg("-o").arg(&program).args(arguments).output();
        let compiled = compiled.expect("cc runs");
        let words = String::from_utf8_lossy(&compiled.stderr).into_owned();
        if compiled.status.success() { Ok(program) } else { Err(words) }
    };
    if let Err(words) = compile(&empty, &["-static".into()]) {
        println!("SKIPPED {NAME}: no static C library: {}", words.lines().next().unwrap_or_default());
        return;
    }
    let prefix = library.install();
    let told = Command::new("pkg-config")
        .args(["--static", "--cflags", "--libs", "megapipe"])
        .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
        .output()
        .expect("pkg-config runs");
    let told = String::from_utf8(told.stdout).expect("text");
    let source = library.directory.join("version.c");
    let program = "#include <megapipe.h>\nint main(void)\n{\n\tmp_channel *channel;\n\n\
                   \treturn mp_create(NULL, &channel) < 0 || mp_destroy(channel) < 0;\n}\n";
    fs::write(&source, program).expect("a file");
    for form in [&["-static"][..], &[]] {
        let arguments: Vec<String> =
            form.iter().copied().chain(told.split_whitespace()).map(str::to_owned).collect();
        let built = compile(&source, &arguments).unwrap_or_else(|words| panic!("{form:?}: {words}"));
        assert!(Command::new(built).status().expect("it runs").success(), "{form:?}");
    }
}

/// Builds and runs all, a few at a time, and reports every failure.
fn run_all(library: &Library, sources: &[PathBuf], wrapper: &[&str]) {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut failures = Vec::new();
        while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
            match build(source, library) {
                Ok(program) => failures.extend(run_on_engines(&program, library, wrapper)),
                Err(message) => failures.push(message),
            }
        }
        failures
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    let failures: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("workers do not panic")).collect()
    });
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}

fn run_on_engines(program: &Path, library: &Library, wrapper: &[&str]) -> Vec<String> {
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut failures = Vec::new();
    for engine in engines() {
        match run(program, library, engine, wrapper) {
            Outcome::Passed => {}
            Outcome::Skipped(why) => println!("SKIPPED {name} ({engine}): {why}"),
            Outcome::Failed(what) => failures.push(format!("{name} ({engine}): {what}")),
        }
    }
    failures
}
