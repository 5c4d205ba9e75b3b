//! The file that the policy comes from, and whether it has changed since.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use promote::client::POLICY_FILE;

use crate::policy::{Policy, PolicyError};

/// A policy file.
#[derive(Debug)]
pub(crate) struct PolicyFile {
    path: PathBuf,
    /// While there is no such file, the policy is the built-in one.
    optional: bool,
    /// State of the file before the last reading.
    seen: Option<Stamp>,
}

/// Where the policy that a monitor follows comes from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Source {
    /// `None`: it is the built-in one.
    pub(crate) path: Option<PathBuf>,
    /// The file has changed since, and cannot be used as it is.
    pub(crate) outdated: bool,
}

impl Source {
    /// A change that lets programs of two users share. `megapipe setup` writes the usual
    /// file alone.
    pub(crate) fn remedy(&self, one: u32, other: u32) -> String {
        match &self.path {
            Some(path) if path != Path::new(POLICY_FILE) => {
                let rule =
                    format!("allow = [{{ one = {{ uid = [{one}] }}, other = {{ uid = [{other}] }} }}]");
                format!("{rule} in {}", path.display())
            }
            _ => format!("sudo megapipe setup --allow {one}:{other}"),
        }
    }
}

/// Device, inode, size and time of the last change of the contents (seconds, nanoseconds).
type Stamp = (u64, u64, u64, i64, i64);

impl PolicyFile {
    pub(crate) fn new(path: &Path, optional: bool) -> PolicyFile {
        PolicyFile { path: path.into(), optional, seen: None }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads it.
    pub(crate) fn load(&mut self) -> Result<Policy, PolicyError> {
        // A change during the reading makes another stamp.
        self.seen = stamp(&self.path);
        match Policy::load(&self.path) {
            Err(PolicyError::Unreadable { cause, .. })
                if self.optional && cause.kind() == io::ErrorKind::NotFound =>
            {
                Ok(Policy::default())
            }
            outcome => outcome,
        }
    }

    /// Where the policy of the last successful reading comes from.
    pub(crate) fn source(&self) -> Source {
        Source { path: self.seen.map(|_| self.path.clone()), outdated: false }
    }

    /// Whether it is another file than at the last reading, has other contents, came or went.
    pub(crate) fn has_changed(&self) -> bool {
        stamp(&self.path) != self.seen
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let of = |found: Metadata| (found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec());
    fs::metadata(path).ok().map(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lets_users_share_goes_into_the_file_that_the_monitor_follows() {
        let of =
            |path: Option<&str>| Source { path: path.map(PathBuf::from), outdated: false }.remedy(26, 33);
        assert_eq!(of(None), "sudo megapipe setup --allow 26:33");
        assert_eq!(of(Some(POLICY_FILE)), "sudo megapipe setup --allow 26:33");
        let own = of(Some("/srv/policy.toml"));
        let (rule, path) = own.split_once(" in ").unwrap();
        assert_eq!(path, "/srv/policy.toml");
        assert!(Policy::parse(rule, Path::new("p")).is_ok(), "{rule}");
    }

    #[test]
    fn it_changes_when_it_comes_is_written_is_replaced_or_goes() {
        let path = std::env::temp_dir().join(format!("megapipe-policy-{}", std::process::id()));
        let other = path.with_extension("new");
        assert!(PolicyFile::new(&path, false).load().is_err());
        let mut file = PolicyFile::new(&path, true);
        let mut is_read = |what: &str, shares: Option<bool>| {
            assert!(file.has_changed(), "{what}");
            assert_eq!(file.load().unwrap().same_user, shares, "{what}");
            assert!(!file.has_changed(), "{what}");
        };
        fs::write(&path, "same_user = false\n").unwrap();
        is_read("came", Some(false));
        fs::write(&path, "same_user = true\n").unwrap();
        is_read("was written", Some(true));
        // The same size and time.
        fs::write(&other, "same_user = true\n").unwrap();
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        fs::File::open(&other).unwrap().set_modified(time).unwrap();
        fs::rename(&other, &path).unwrap();
        is_read("was replaced", Some(true));
        fs::remove_file(&path).unwrap();
        is_read("went", None);
        // One with a mistake is not read again and again.
        fs::write(&path, "sameuser = true\n").unwrap();
        assert!(file.has_changed() && file.load().is_err() && !file.has_changed());
        fs::remove_file(&path).unwrap();
    }
}
