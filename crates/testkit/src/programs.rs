//! The servers of `tests/programs.toml`, and where programs of the distribution are.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::{Table, Value};

/// How a server is started in a folder, where its files are.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// The program and its arguments, which [`Program::tcp`] or [`Program::unix`] follow.
    pub command: Vec<String>,
    /// Arguments to listen at a port.
    #[serde(default)]
    pub tcp: Vec<String>,
    /// Arguments to listen at [`Program::socket`].
    #[serde(default)]
    pub unix: Vec<String>,
    /// Its UNIX socket, or the directory of that.
    pub socket: Option<PathBuf>,
    /// A command that is run once before.
    #[serde(default)]
    pub prepare: Vec<String>,
    /// A file whose last line begins with "ready" once it serves. `None`: it serves once it listens.
    pub ready: Option<PathBuf>,
    #[serde(default)]
    files: BTreeMap<String, String>,
}

impl Program {
    /// The server of this name. Writes its files into the folder.
    ///
    /// # Errors
    ///
    /// A file cannot be written.
    ///
    /// # Panics
    ///
    /// There is no such server, or its description names a value that is not there.
    pub fn new(name: &str, folder: &Path, port: u16, values: &[(&str, &str)]) -> io::Result<Program> {
        let mut all: Table = include_str!("../../../tests/programs.toml").parse().expect("valid TOML");
        let mut description = all.remove(name).unwrap_or_else(|| panic!("no server {name}"));
        let user = if rustix::process::geteuid().is_root() { "root" } else { "nobody" };
        let usual =
            [("folder", folder.display().to_string()), ("port", port.to_string()), ("user", user.into())];
        let mut known = Table::from_iter(usual.map(|(name, value)| (name.into(), value.into())));
        if let Some(Value::Table(defaults)) =
            description.as_table_mut().and_then(|table| table.remove("values"))
        {
            known.extend(defaults);
        }
        known.extend(values.iter().map(|(name, value)| (name.to_string(), (*value).into())));
        let program: Program = filled(description, &known).try_into().expect("a server's description");
        for (name, text) in &program.files {
            fs::write(folder.join(name), text)?;
        }
        Ok(program)
    }
}

fn filled(value: Value, known: &Table) -> Value {
    match value {
        Value::String(text) => fill(&text, known).into(),
        Value::Array(list) => list.into_iter().map(|value| filled(value, known)).collect::<Vec<_>>().into(),
        Value::Table(table) => {
            table.into_iter().map(|(name, value)| (name, filled(value, known))).collect::<Table>().into()
        }
        other => other,
    }
}

/// The text with values in place of their names.
fn fill(text: &str, known: &Table) -> String {
    let part = |(place, part): (usize, &str)| match known.get(part) {
        _ if place % 2 == 0 => part.to_owned(),
        Some(value) => fill(value.as_str().expect("a string"), known),
        None => panic!("no value @{part}@"),
    };
    text.split('@').enumerate().map(part).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_caller_come_before_those_of_the_description() {
        let folder = tempfile::tempdir().unwrap();
        let program = Program::new("nginx", folder.path(), 81, &[("server", "root @folder@/here;")]).unwrap();
        let (path, text) =
            (folder.path().display(), fs::read_to_string(folder.path().join("nginx.conf")).unwrap());
        assert_eq!(
            program.command[3..],
            ["-p".into(), path.to_string(), "-c".into(), format!("{path}/nginx.conf")][..]
        );
        assert!(text.contains(&format!("server {{ listen 127.0.0.1:81; root {path}/here; }}")), "{text}");
    }

    #[test]
    #[should_panic(expected = "no value @mpm@")]
    fn a_value_that_is_not_there_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let _ = Program::new("apache", folder.path(), 81, &[]);
    }

    #[test]
    fn programs_are_found_by_name() {
        assert!(find("sh").is_some() && find("no-such-program-here").is_none());
    }
}
