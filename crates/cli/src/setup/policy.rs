//! The policy file, as far as setup wrote it: whether it did, and its contents. A
//! checksum in its first line shows edits since.

use std::fs::{self, OpenOptions};
use std::hash::Hasher;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use monitor::policy::Policy;
use promote::client::POLICY_FILE;
use siphasher::sip::SipHasher13;

use super::service::UNIT;
use super::users::Pair;

/// What setup has written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    pairs: Vec<Pair>,
    /// Setup enabled the unit, which was not enabled before.
    pub(super) enabled: bool,
}

/// What is at the policy's place.
pub(super) enum Found {
    Nothing,
    Ours(Written),
    /// Not written by setup, and how that shows.
    Other(&'static str),
}

const MARK: &str = "# Written by megapipe setup, checksum ";
const REST_OF_LINE: &str = "; who edits this file owns it, and setup leaves it alone then.\n";
/// Always: what programs of one user share at a monitor of their own, they keep when the system's takes its place.
const SAME_USER: &str = "same_user = true\n";
const INCLUDES_ROOT: &str = "# Programs of the same user share, root's included.\n";
const ALLOW: &str = "allow = [\n";
const END: &str = "]\n";

fn enabled_line() -> String {
    format!("# {UNIT} was enabled by setup.\n")
}

impl Written {
    pub(super) fn add(&mut self, pairs: &[Pair]) {
        for pair in pairs {
            if !self.pairs.iter().any(|known| known.is(pair.one, pair.other)) {
                self.pairs.push(pair.clone());
            }
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        if self.enabled {
            text += &enabled_line();
        }
        text += INCLUDES_ROOT;
        text += SAME_USER;
        if !self.pairs.is_empty() {
            text += ALLOW;
            text.extend(self.pairs.iter().map(Pair::as_entry));
            text += END;
        }
        format!("{MARK}{:016x}{REST_OF_LINE}{text}", checksum(&text))
    }

    fn parse(text: &str) -> Found {
        let Some(marked) = text.strip_prefix(MARK) else {
            return Found::Other("was not written by setup");
        };
        let edited = Found::Other("was edited since setup wrote it");
        let mut written = Written::default();
        for line in marked.split_inclusive('\n').skip(1) {
            match line {
                INCLUDES_ROOT | SAME_USER | ALLOW | END => {}
                _ if line == enabled_line() => written.enabled = true,
                _ => match Pair::of_entry(line) {
                    Some(pair) => written.pairs.push(pair),
                    None => return edited,
                },
            }
        }
        // What a later version writes, and this one would lose, counts as edited, too.
        if written.text() == text { Found::Ours(written) } else { edited }
    }
}

/// Only finds edits: no secret is needed to write what setup would write.
fn checksum(text: &str) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(text.as_bytes());
    hasher.finish()
}

pub(super) fn read() -> Result<Found, String> {
    let path = Path::new(POLICY_FILE);
    let failed = |error: io::Error| format!("{POLICY_FILE} cannot be read: {error}");
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.is_file() => return Ok(Found::Other("is not a regular file")),
        Ok(_) => {}
    }
    // Bytes: what is no text was not written here.
    let bytes = fs::read(path).map_err(failed)?;
    Ok(Written::parse(&String::from_utf8_lossy(&bytes)))
}

/// Whole, or not at all: by rename. A monitor may read it at any moment.
pub(super) fn write(policy: &Written) -> Result<(), String> {
    let path = Path::new(POLICY_FILE);
    let directory = path.parent().unwrap_or(Path::new("/"));
    let failed = |error: io::Error| {
        format!(
            "{POLICY_FILE} cannot be written: {error}; make {} writable, and try again",
            directory.display()
        )
    };
    fs::DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(failed)?;
    let fresh = path.with_extension("toml.new");
    let mut options = OpenOptions::new();
    let mut file =
        options.write(true).create(true).truncate(true).mode(0o644).open(&fresh).map_err(failed)?;
    let written = file
        .write_all(policy.text().as_bytes())
        // Whatever the umask is, users may read what they are allowed.
        .and_then(|()| file.set_permissions(fs::Permissions::from_mode(0o644)))
        .and_then(|()| file.sync_all())
        .map_err(failed)
        .and_then(|()| Policy::load(&fresh).map(drop).map_err(|error| error.to_string()))
        .and_then(|()| fs::rename(&fresh, path).map_err(failed));
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written
}

/// With its directory, if nothing else is in that.
pub(super) fn remove() -> Result<(), String> {
    fs::remove_file(POLICY_FILE).map_err(|error| format!("{POLICY_FILE} cannot be removed: {error}"))?;
    let _ = Path::new(POLICY_FILE).parent().map(fs::remove_dir);
    Ok(())
}
