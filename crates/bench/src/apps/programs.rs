//! What the distribution brings: programs, and packages of Python modules.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use super::server;

/// A package of Python modules: its name in Debian and Ubuntu, and the module.
const MODULES: &[(&str, &str)] =
    &[("python3-redis", "redis"), ("python3-psycopg2", "psycopg2"), ("python3-grpcio", "grpc")];

/// Those of these programs and packages that are not installed.
pub fn missing(names: &[&'static str]) -> Vec<&'static str> {
    let is_missing = |name: &&&str| match module(name) {
        Some(module) => import(module, "").is_none_or(|output| !output.status.success()),
        None => find(name).is_none(),
    };
    names.iter().filter(is_missing).copied().collect()
}

/// The version of a program, in its own words, or of a package's module.
pub(super) fn version(name: &str) -> Option<String> {
    let output = match module(name) {
        Some(module) => import(module, &format!("; print({module}.__version__)"))?,
        None => {
            let flag = if matches!(name, "nginx" | "haproxy" | "wrk") { "-v" } else { "--version" };
            server::plain(name).ok()?.arg(flag).output().ok()?
        }
    };
    let words = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    String::from_utf8_lossy(&words).lines().next().map(|line| line.trim().to_owned())
}

/// The program of this name, where shells and administrators look for it; PostgreSQL's where
/// distributions keep them.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders = env::split_paths(&path).collect::<Vec<_>>();
    if name == "python3" {
        // Another interpreter, of pyenv for one, does not have the distribution's packages.
        folders.insert(0, Path::new("/usr/bin").to_owned());
    }
    folders.extend(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from));
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions = versions.map(|entry| entry.path().join("bin")).collect::<Vec<_>>();
    versions.sort();
    folders.extend(versions.into_iter().rev());
    folders.into_iter().map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn module(name: &str) -> Option<&'static str> {
    MODULES.iter().find(|(package, _)| *package == name).map(|(_, module)| *module)
}

fn import(module: &str, then: &str) -> Option<Output> {
    server::plain("python3").ok()?.args(["-c", &format!("import {module}{then}")]).output().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_modules_are_found_by_name() {
        assert!(find("sh").is_some() && find("no-such-program-here").is_none());
        assert_eq!(missing(&["sh", "no-such-program-here"]), ["no-such-program-here"]);
        for (package, _) in MODULES {
            let has_version =
                version(package).is_some_and(|text| text.starts_with(|c: char| c.is_ascii_digit()));
            assert_eq!(missing(&[package]).is_empty(), has_version, "{package}");
        }
    }
}
