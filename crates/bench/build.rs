//! Finds the C libraries that are measured as peers. Without them the benchmark builds all the
//! same and names these peers as absent.

use std::path::Path;
use std::process::Command;

fn main() {
    watch_packages();
    for (peer, package, minimum) in [("libevent", "libevent_core", "2.1"), ("libuv", "libuv", "1.0")] {
        println!("cargo::rustc-check-cfg=cfg({peer})");
        let source = format!("src/peer/{peer}.c");
        println!("cargo::rerun-if-changed={source}");
        let Ok(library) = pkg_config::Config::new().atleast_version(minimum).probe(package) else {
            continue;
        };
        let compiled = cc::Build::new()
            .file(source)
            .includes(library.include_paths)
            .define("_GNU_SOURCE", None)
            .extra_warnings(true)
            .try_compile(&format!("bench_{peer}"));
        match compiled {
            Ok(()) => println!("cargo::rustc-cfg={peer}"),
            Err(error) => println!("cargo::warning=the benchmark is built without {peer}: {error}"),
        }
    }
}

/// Has this run again when a package is installed or removed.
fn watch_packages() {
    let folders = Command::new("pkg-config").args(["--variable", "pc_path", "pkg-config"]).output();
    let Ok(folders) = folders else { return };
    for folder in String::from_utf8_lossy(&folders.stdout).trim().split(':') {
        if Path::new(folder).is_dir() {
            println!("cargo::rerun-if-changed={folder}");
        }
    }
}
