//! With the feature `peers`, finds the C libraries that are measured as peers. Without one of them the
//! benchmark builds all the same and names that peer as absent. They become part of the program, which then
//! needs nothing but libc wherever it is taken.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(libevent, libuv)");
    #[cfg(feature = "peers")]
    peers::find();
}

#[cfg(feature = "peers")]
mod peers {
    use std::path::Path;
    use std::process::Command;

    pub(super) fn find() {
        watch_packages();
        let packages =
            [("libevent", "libevent_core", "2.1", "event_core"), ("libuv", "libuv", "1.0", "uv_a")];
        for (peer, package, minimum, archive) in packages {
            let source = format!("src/peer/{peer}.c");
            println!("cargo::rerun-if-changed={source}");
            let mut search = pkg_config::Config::new();
            let Ok(library) = search.atleast_version(minimum).cargo_metadata(false).probe(package) else {
                continue;
            };
            let Some(folder) = folder_of(package, archive) else {
                println!("cargo::warning=the benchmark is built without {peer}: there is no lib{archive}.a");
                continue;
            };
            let compiled = cc::Build::new()
                .file(source)
                .includes(library.include_paths)
                .define("_GNU_SOURCE", None)
                .extra_warnings(true)
                .try_compile(&format!("bench_{peer}"));
            match compiled {
                Ok(()) => {
                    println!("cargo::rustc-cfg={peer}");
                    println!("cargo::rustc-link-search=native={folder}");
                    println!("cargo::rustc-link-lib=static={archive}");
                }
                Err(error) => println!("cargo::warning=the benchmark is built without {peer}: {error}"),
            }
        }
    }

    /// Where a package keeps its static library; `None`: it has none.
    fn folder_of(package: &str, archive: &str) -> Option<String> {
        let folder = pkg_config::get_variable(package, "libdir").ok()?;
        Path::new(&folder).join(format!("lib{archive}.a")).is_file().then_some(folder)
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
}
