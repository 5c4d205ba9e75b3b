//! What the distribution brings: programs, and packages of Python modules.

use testkit::programs::find;

use super::server;

/// A package of Python modules: its name in Debian and Ubuntu, and the module.
const MODULES: &[(&str, &str)] =
    &[("python3-redis", "redis"), ("python3-psycopg2", "psycopg2"), ("python3-grpcio", "grpc")];

/// Those of these programs and packages that are not installed.
pub fn missing(names: &[&'static str]) -> Vec<&'static str> {
    let is_missing = |name: &&&str| match module(name) {
        Some(module) => version_of_module(module).is_none(),
        None => find(name).is_none(),
    };
    names.iter().filter(is_missing).copied().collect()
}

/// The version of a program, in its own words, or of a package's module.
pub(super) fn version(name: &str) -> Option<String> {
    if let Some(module) = module(name) {
        return version_of_module(module);
    }
    let flag = if matches!(name, "nginx" | "haproxy" | "wrk") { "-v" } else { "--version" };
    let output = server::plain(name).ok()?.arg(flag).output().ok()?;
    first_line(if output.stdout.is_empty() { output.stderr } else { output.stdout })
}

fn module(name: &str) -> Option<&'static str> {
    MODULES.iter().find(|(package, _)| *package == name).map(|(_, module)| *module)
}

/// A module that only has a folder, as a removed package may leave it, can be imported but has no version.
fn version_of_module(module: &str) -> Option<String> {
    let script = format!("import {module}; print({module}.__version__)");
    let output = server::plain("python3").ok()?.args(["-c", &script]).output().ok()?;
    if output.status.success() { first_line(output.stdout) } else { None }
}

fn first_line(words: Vec<u8>) -> Option<String> {
    String::from_utf8_lossy(&words).lines().next().map(|line| line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_modules_are_found_by_name() {
        assert_eq!(missing(&["sh", "no-such-program-here"]), ["no-such-program-here"]);
        assert_eq!(version_of_module("sys.no_such_module_here"), None);
        assert_eq!(version_of_module("xml"), None); // is there, without a version
    }
}
