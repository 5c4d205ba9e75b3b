//! The policy file: its keys, and their values.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use promote::client::REGION_SIZES;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, Unexpected, Visitor};

/// Why a policy cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("the policy {path} cannot be read: {cause}; correct the path or its permissions")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// open(2) or read(2).
        #[source]
        cause: io::Error,
    },
    /// The file is not a policy; the cause shows the line.
    #[error(
        "{path}: {cause}\nThe keys and their values are listed in docs/monitor.md; correct the line above, or remove it."
    )]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Where and what.
        #[source]
        cause: Box<toml::de::Error>,
    },
    /// A limit is outside of what is possible.
    #[error("{path}: limits.{key} = {value} is impossible; it must be {remedy}")]
    Limit {
        /// The file.
        path: PathBuf,
        /// Which.
        key: &'static str,
        /// Its value.
        value: u64,
        /// Its range.
        remedy: &'static str,
    },
}

/// A policy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Whether two programs of one user share without a rule; `None`: those of the monitor's
    /// own user.
    pub(crate) same_user: Option<bool>,
    pub(crate) allow: Vec<Rule>,
    pub(crate) deny: Vec<Rule>,
    /// Bounds.
    pub limits: Limits,
}

/// Bounds, each for one user or one client.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Bytes of each region.
    pub segment_size: u32,
    /// Regions that one user's programs may hold.
    pub segments_per_user: u64,
    /// Bytes of all their regions.
    pub bytes_per_user: u64,
    /// Offers of one client that may wait.
    pub waiting_per_client: u64,
    /// Offers that one client may make in a second.
    pub offers_per_second: u32,
    /// Offers that it may make at once after a pause.
    pub offers_burst: u32,
    /// Clients that one user may have connected.
    pub clients_per_user: u64,
    /// Clients of all users.
    pub clients: u64,
    /// Milliseconds that an offer waits for the other endpoint's.
    pub offer_expires_ms: u32,
    /// The same for offers from another network namespace, whose descriptor the monitor
    /// has to keep meanwhile.
    pub foreign_offer_expires_ms: u32,
    /// Such offers of one user that may wait.
    pub foreign_waiting_per_user: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            segment_size: 256 << 10,
            segments_per_user: 65_536,
            bytes_per_user: 16 << 30,
            waiting_per_client: 16_384,
            offers_per_second: 20_000,
            offers_burst: 20_000,
            clients_per_user: 4096,
            clients: 16_384,
            offer_expires_ms: 5000,
            foreign_offer_expires_ms: 500,
            foreign_waiting_per_user: 64,
        }
    }
}

impl Limits {
    /// How long an offer waits.
    pub fn offer_expires(&self, foreign: bool) -> Duration {
        let milliseconds = if foreign { self.foreign_offer_expires_ms } else { self.offer_expires_ms };
        Duration::from_millis(milliseconds.into())
    }

    fn check(&self, path: &Path) -> Result<(), PolicyError> {
        let wrong = |key, value: u32, remedy| {
            Err(PolicyError::Limit { path: path.into(), key, value: value.into(), remedy })
        };
        if !REGION_SIZES.contains(&self.segment_size) || !self.segment_size.is_multiple_of(4096) {
            return wrong("segment_size", self.segment_size, "a multiple of 4096 from 8192 to 16777216");
        }
        if self.offers_burst == 0 {
            return wrong("offers_burst", 0, "at least 1");
        }
        if self.offer_expires_ms == 0 {
            return wrong("offer_expires_ms", 0, "at least 1");
        }
        Ok(())
    }
}

/// Two parties, and the connections between them that a rule is about.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    pub(crate) one: Who,
    pub(crate) other: Who,
    /// One of the two ports is among these.
    #[serde(default, deserialize_with = "some")]
    pub(crate) ports: Option<Vec<Ports>>,
    /// Both addresses are among these.
    #[serde(default, deserialize_with = "some")]
    pub(crate) addresses: Option<Vec<Network>>,
}

/// Programs; every key that is given must hold.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Who {
    #[serde(deserialize_with = "numbers")]
    pub(crate) uid: Option<Vec<u32>>,
    #[serde(deserialize_with = "numbers")]
    pub(crate) gid: Option<Vec<u32>>,
    pub(crate) cgroup: Option<ControlGroup>,
}

/// A list that is not empty. An empty one could be meant as nobody and read as everybody,
/// which only the absence of its key is.
fn some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<Vec<T>>, D::Error> {
    let list = Vec::deserialize(deserializer)?;
    if list.is_empty() {
        return Err(D::Error::custom(
            "an empty list would match nothing; fill it in, or remove the key, without which any matches",
        ));
    }
    Ok(Some(list))
}

/// The same of users or groups.
fn numbers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u32>>, D::Error> {
    let numbers: Option<Vec<Number>> = some(deserializer)?;
    Ok(numbers.map(|numbers| numbers.into_iter().map(|Number(number)| number).collect()))
}

/// A user or group by its number, as the kernel has it: names may be another host's or container's.
struct Number(u32);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Number, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Number;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(
                    "a number, which `id -u NAME` says of a user and `getent group NAME` of a group",
                )
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Number, E> {
                u32::try_from(value)
                    .map(Number)
                    .map_err(|_| E::invalid_value(Unexpected::Signed(value), &self))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl Policy {
    /// Reads a policy.
    pub fn load(path: &Path) -> Result<Policy, PolicyError> {
        let text = std::fs::read_to_string(path)
            .map_err(|cause| PolicyError::Unreadable { path: path.into(), cause })?;
        Policy::parse(&text, path)
    }

    /// Whether a `deny` rule lists a user: one that holds for a user whom it does not list is about the other side.
    pub fn denies(&self, user: u32) -> bool {
        let sides = self.deny.iter().flat_map(|rule| [&rule.one, &rule.other]);
        sides.filter_map(|who| who.uid.as_ref()).any(|users| users.contains(&user))
    }

    pub(crate) fn parse(text: &str, path: &Path) -> Result<Policy, PolicyError> {
        let policy: Policy = toml::from_str(text)
            .map_err(|cause| PolicyError::Wrong { path: path.into(), cause: Box::new(cause) })?;
        policy.limits.check(path)?;
        Ok(policy)
    }
}

/// A control group (version 2), and all below it: its path, as the kernel writes it
/// (cgroups(7)), without a slash at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ControlGroup(String);

impl ControlGroup {
    pub(crate) fn holds(&self, path: &str) -> bool {
        path.strip_prefix(&self.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl<'de> Deserialize<'de> for ControlGroup {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ControlGroup, D::Error> {
        let text = String::deserialize(deserializer)?;
        let path = text.trim_end_matches('/');
        if text.starts_with('/') && !path.contains("//") {
            return Ok(ControlGroup(path.to_owned()));
        }
        let expected = "a control group's path from the root, such as \"/system.slice/nginx.service\"; \
                        without the key any matches";
        Err(D::Error::invalid_value(Unexpected::Str(&text), &expected))
    }
}

/// A port, or some in a row: `80` or `"8000-8999"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    pub(crate) fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ports, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Ports;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a port from 0 to 65535, or some in a row such as \"8000-8999\"")
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Ports, E> {
                let port =
                    u16::try_from(value).map_err(|_| E::invalid_value(Unexpected::Signed(value), &self))?;
                Ok(Ports { first: port, last: port })
            }

            fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Ports, E> {
                let (first, last) = value.split_once('-').unwrap_or((value, value));
                match (first.trim().parse(), last.trim().parse()) {
                    (Ok(first), Ok(last)) if first <= last => Ok(Ports { first, last }),
                    _ => Err(E::invalid_value(Unexpected::Str(value), &self)),
                }
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// Addresses that begin with the same bits: `"10.0.0.0/8"`, or one alone: `"::1"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    address: IpAddr,
    bits: u32,
}

impl Network {
    pub(crate) fn contains(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros() >= self.bits
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros() >= self.bits
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = ();

    fn from_str(text: &str) -> Result<Network, ()> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| ())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits: u32 = bits.map_or(Ok(most), |bits| bits.parse().map_err(|_| ()))?;
        if bits > most {
            return Err(());
        }
        // Connections between v4-mapped addresses count as IPv4.
        match address {
            IpAddr::V6(own) => match own.to_ipv4_mapped() {
                Some(own) => Ok(Network { address: own.into(), bits: bits.checked_sub(96).ok_or(())? }),
                None => Ok(Network { address, bits }),
            },
            IpAddr::V4(_) => Ok(Network { address, bits }),
        }
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Network, D::Error> {
        let text = String::deserialize(deserializer)?;
        let expected = "an address, or a network such as \"127.0.0.0/8\" or \"fd00::/8\"";
        text.parse().map_err(|()| D::Error::invalid_value(Unexpected::Str(&text), &expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        Policy::parse(text, Path::new("p.toml")).unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let text = refusal("same_user = true\n[limits]\nsegmentsize = 4096\n");
        assert!(
            text.contains("line 3") && text.contains("segmentsize") && text.contains("segment_size"),
            "{text}"
        );
        let text = refusal("[[allow]]\none = {}\n");
        assert!(text.contains("other"), "{text}");
        for wrong in [
            "ports = []",
            "addresses = []",
            "addresses = [\"::ffff:10.0.0.0/8\"]",
            "ports = [70000]",
            "ports = [\"9-8\"]",
            "addresses = [\"10.0.0.0/33\"]",
            "addresses = [\"host\"]",
        ] {
            let text = refusal(&format!("[[allow]]\none = {{}}\nother = {{}}\n{wrong}\n"));
            assert!(text.contains("line 4") && text.contains("docs/monitor.md"), "{text}");
        }
        for wrong in
            ["uid = []", "gid = []", "cgroup = \"\"", "cgroup = \"system.slice\"", "cgroup = \"/a//b\""]
        {
            // A list of nobody must never come to be one of everybody, in either kind of rule.
            for rule in ["allow", "deny"] {
                let text = refusal(&format!("[[{rule}]]\none = {{}}\nother = {{ {wrong} }}\n"));
                assert!(text.contains("line 3") && text.contains("the key"), "{text}");
                let text = refusal(&format!("[[{rule}]]\none = {{}}\n[{rule}.other]\n{wrong}\n"));
                assert!(text.contains("line 4") && text.contains("the key"), "{text}");
            }
        }
        for wrong in ["uid = [\"nobody\"]", "gid = [\"nogroup\"]", "uid = [-1]", "uid = [4294967296]"] {
            let text = refusal(&format!("[[allow]]\none = {{}}\nother = {{ {wrong} }}\n"));
            assert!(
                text.contains("line 3") && text.contains("expected a number, which `id -u NAME`"),
                "{text}"
            );
        }
        assert!(refusal("[limits]\nsegment_size = 5000\n").contains("multiple of 4096"));
        assert!(refusal("[limits]\noffers_burst = 0\n").contains("at least 1"));
    }

    #[test]
    fn a_denial_concerns_the_users_that_it_lists() {
        let denies = |rule: &str, user| {
            Policy::parse(&format!("[[deny]]\n{rule}\n"), Path::new("p.toml")).unwrap().denies(user)
        };
        let one = "one = { uid = [5] }\nother = {}";
        assert!(denies(one, 5) && !denies(one, 0));
        let other = "one = { cgroup = \"/a\" }\nother = { uid = [5, 6] }";
        assert!(denies(other, 6) && !denies(other, 0));
    }
}
