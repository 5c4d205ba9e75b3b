//! Reading `/proc` and `/sys`, below a root that tests can choose.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub(crate) struct System {
    root: PathBuf,
}

impl System {
    pub(crate) fn this() -> Self {
        Self::below("/")
    }

    pub(crate) fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The file's text without surrounding white space; None where it is absent or unreadable.
    pub(crate) fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok().map(|text| text.trim().to_owned())
    }

    pub(crate) fn value<T: FromStr>(&self, path: &str) -> Option<T> {
        self.read(path)?.parse().ok()
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The names in a directory, in natural order ("rx-2" before "rx-10"); empty where it is absent.
    pub(crate) fn names(&self, directory: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.path(directory))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_by_key(|name| (name.len(), name.clone()));
        names
    }

    /// The last component of what a symbolic link points to.
    pub(crate) fn link_name(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name().map(Path::new)?.display().to_string())
    }

    /// A line of `/proc/self/status`, by its name.
    pub(crate) fn status(&self, field: &str) -> Option<String> {
        let status = self.read("/proc/self/status")?;
        status
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| *name == field)
            .map(|(_, value)| value.trim().to_owned())
    }

    /// Whether this process has an effective capability (capabilities(7)).
    pub(crate) fn has_capability(&self, number: u32) -> bool {
        self.status("CapEff")
            .and_then(|mask| u64::from_str_radix(&mask, 16).ok())
            .is_some_and(|mask| mask >> number & 1 == 1)
    }

    /// Whether a card follows flows by filters; `None`: it does not say, or this is no running system.
    pub(crate) fn has_flow_filters(&self, interface: &str) -> Option<bool> {
        if self.root != Path::new("/") {
            return None;
        }
        sys::ethtool::has_flow_filters(interface).ok()
    }

    /// The command as this user has to type it when it needs root.
    pub(crate) fn as_root(&self, command: &str) -> String {
        let effective = self.status("Uid").and_then(|ids| ids.split_whitespace().nth(1).map(str::to_owned));
        if effective.as_deref() == Some("0") { command.to_owned() } else { format!("sudo {command}") }
    }
}

/// Numbers of a kernel list such as `0-2,5`.
pub(crate) fn parse_list(list: &str) -> Vec<u32> {
    list.split(',')
        .filter_map(|part| {
            let (first, last) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
            Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
        })
        .flatten()
        .collect()
}

/// Numbers of the bits set in a kernel mask such as `00000001,80000000`: 32 bits a group, highest group first.
pub(crate) fn parse_mask(mask: &str) -> Vec<u32> {
    let groups: Vec<u32> =
        mask.trim().split(',').filter_map(|group| u32::from_str_radix(group, 16).ok()).collect();
    groups
        .iter()
        .rev()
        .zip((0..).step_by(32))
        .flat_map(|(group, base)| (0..32).filter(move |bit| group >> bit & 1 == 1).map(move |bit| base + bit))
        .collect()
}

/// A mask as sysfs takes it: groups of 32 bits, the highest first.
pub(crate) fn hex_mask(numbers: &[u32]) -> String {
    let groups = numbers.iter().max().map_or(1, |most| most / 32 + 1);
    let group = |index: u32| {
        let bits = numbers.iter().filter(|number| *number / 32 == index).map(|number| 1u32 << (number % 32));
        bits.fold(0, |mask, bit| mask | bit)
    };
    let first = format!("{:x}", group(groups - 1));
    (0..groups - 1).rev().fold(first, |mask, index| format!("{mask},{:08x}", group(index)))
}

/// The opposite of [`parse_list`].
pub(crate) fn format_list(numbers: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let parts: Vec<String> = ranges
        .into_iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_masks_name_the_same_numbers() {
        assert_eq!(parse_list("0-2,5"), [0, 1, 2, 5]);
        assert!(parse_list("").is_empty());
        assert_eq!(parse_mask("00000001,80000003"), [0, 1, 31, 32]);
        assert!(parse_mask("0").is_empty());
        assert_eq!(hex_mask(&[0, 1, 2, 3]), "f");
        assert_eq!(hex_mask(&[0, 40, 95]), "80000000,00000100,00000001");
        assert_eq!(parse_mask(&hex_mask(&[0, 40, 95])), [0, 40, 95]);
        assert_eq!(hex_mask(&[]), "0");
        assert_eq!(format_list(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(format_list(&parse_list("0-2,5")), "0-2,5");
    }
}
