//! What the distribution brings: programs, and packages of libraries.

use testkit::programs::find;

use super::server;

/// A program and its arguments.
type Question<'a> = (&'a str, &'a [&'a str]);

/// A package of a library: its name in Debian and Ubuntu, and what prints the library's version, or nothing to
/// standard output if it is not there. A module that only has a folder, as a removed package may leave it, can be
/// imported but has no version.
const LIBRARIES: &[(&str, Question<'_>)] = &[
    ("python3-redis", ("python3", &["-c", "import redis; print(redis.__version__)"])),
    ("python3-psycopg2", ("python3", &["-c", "import psycopg2; print(psycopg2.__version__)"])),
    ("python3-grpcio", ("python3", &["-c", "import grpc; print(grpc.__version__)"])),
    ("libpostgresql-jdbc-java", ("java", &["-jar", JDBC])),
    ("php-redis", ("php", &["-r", "echo phpversion('redis');"])),
];

/// Where the package has PostgreSQL's driver for Java.
pub(super) const JDBC: &str = "/usr/share/java/postgresql.jar";

/// Those of these programs and packages that are not installed.
pub fn missing(names: &[&'static str]) -> Vec<&'static str> {
    let is_missing = |name: &&&str| match library(name) {
        Some(question) => answer(question).is_none(),
        None => find(name).is_none(),
    };
    names.iter().filter(is_missing).copied().collect()
}

/// The version of a program, in its own words, or of a package's library.
pub(super) fn version(name: &str) -> Option<String> {
    if let Some(question) = library(name) {
        return answer(question);
    }
    let flag = if matches!(name, "nginx" | "haproxy" | "wrk") { "-v" } else { "--version" };
    let output = server::plain(name).ok()?.arg(flag).output().ok()?;
    first_line(if output.stdout.is_empty() { output.stderr } else { output.stdout })
}

fn library(name: &str) -> Option<Question<'static>> {
    LIBRARIES.iter().find(|(package, _)| *package == name).map(|(_, question)| *question)
}

fn answer((program, arguments): Question<'_>) -> Option<String> {
    first_line(server::plain(program).ok()?.args(arguments).output().ok()?.stdout)
}

fn first_line(words: Vec<u8>) -> Option<String> {
    let words = String::from_utf8_lossy(&words);
    words.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_libraries_are_found_by_name() {
        assert_eq!(missing(&["sh", "no-such-program-here"]), ["no-such-program-here"]);
        let version_of = |module| answer(("python3", &["-c", module]));
        assert_eq!(version_of("import sys; print(sys.no_such_module_here)"), None);
        assert_eq!(version_of("import xml; print(xml.__version__)"), None); // is there, without a version
        assert_eq!(answer(("sh", &["-c", "echo; echo ' 1.2 '; exit 1"])).as_deref(), Some("1.2"));
    }
}
