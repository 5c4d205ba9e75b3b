//! The place of a stack on a TUN device, as text: `tun:NAME,ADDRESS/PREFIX`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::Prefix;
use crate::group::Queue;
use crate::tun::{OpenError, Tun};

/// Longest packet on the device; with its offloads the kernel hands over 64 KB as one.
const MTU: u16 = 1500;

/// A TUN device and the addresses of a stack on it, each with the length of the prefix that the
/// kernel reaches through the device.
///
/// In text `tun:NAME,ADDRESS/PREFIX`, with at most one more `,ADDRESS/PREFIX` of the other family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunNetwork {
    name: String,
    networks: Vec<Prefix>,
}

/// Why a text names no [`TunNetwork`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunNetworkError(String);

impl fmt::Display for TunNetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not tun:NAME,ADDRESS/PREFIX, with room for two addresses in the prefix", self.0)
    }
}

impl std::error::Error for TunNetworkError {}

impl TunNetwork {
    /// The name of the device, or a pattern for it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The addresses of the stack.
    pub fn networks(&self) -> &[Prefix] {
        &self.networks
    }

    /// Makes the device, brings it up, and gives the kernel's end the first other address of each
    /// prefix. The device is gone when it is dropped.
    pub fn open(&self) -> Result<Tun, OpenError> {
        let tun = Tun::open(&self.name, MTU)?;
        self.set_up(&tun)?;
        Ok(tun)
    }

    /// As [`open`](TunNetwork::open), with so many queues, for a stack with these addresses on each of them.
    /// Every flow stays on the queue that its first packet came on. The stacks share the work, and packets that
    /// came to the wrong one; a stack that ends leaves its queue to another.
    pub fn open_queues(&self, queues: usize) -> Result<Vec<Queue>, OpenError> {
        let queues = Queue::open(&self.name, MTU, queues)?;
        self.set_up(queues[0].tun())?;
        Ok(queues)
    }

    fn set_up(&self, tun: &Tun) -> Result<(), OpenError> {
        tun.bring_up()?;
        for network in &self.networks {
            tun.add_kernel_address(first_other(network), network.bits)?;
        }
        Ok(())
    }
}

/// The first address of a prefix that is neither the network's nor the stack's.
fn first_other(network: &Prefix) -> IpAddr {
    let host_bits = |width: u8| u32::from(width - network.bits);
    match network.address {
        IpAddr::V4(own) => {
            let base = own.to_bits() >> host_bits(32) << host_bits(32);
            let first = if base + 1 == own.to_bits() { base + 2 } else { base + 1 };
            IpAddr::V4(Ipv4Addr::from_bits(first))
        }
        IpAddr::V6(own) => {
            let base = own.to_bits() >> host_bits(128) << host_bits(128);
            let first = if base + 1 == own.to_bits() { base + 2 } else { base + 1 };
            IpAddr::V6(Ipv6Addr::from_bits(first))
        }
    }
}

impl FromStr for TunNetwork {
    type Err = TunNetworkError;

    fn from_str(text: &str) -> Result<TunNetwork, TunNetworkError> {
        let wrong = || TunNetworkError(text.to_owned());
        let mut parts = text.strip_prefix("tun:").ok_or_else(wrong)?.split(',');
        let name = parts.next().filter(|name| !name.is_empty()).ok_or_else(wrong)?.to_owned();
        let networks: Option<Vec<Prefix>> = parts.map(prefix).collect();
        let networks = networks.ok_or_else(wrong)?;
        let v4 = networks.iter().filter(|network| network.address.is_ipv4()).count();
        if networks.is_empty() || v4 > 1 || networks.len() - v4 > 1 {
            return Err(wrong());
        }
        Ok(TunNetwork { name, networks })
    }
}

/// An address and the length of a prefix that has room for a second one.
fn prefix(text: &str) -> Option<Prefix> {
    let (address, bits) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let bits: u8 = bits.parse().ok()?;
    let most = if address.is_ipv4() { 30 } else { 126 };
    (1..=most).contains(&bits).then_some(Prefix { address, bits })
}

impl fmt::Display for TunNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tun:{}", self.name)?;
        self.networks.iter().try_for_each(|Prefix { address, bits }| write!(f, ",{address}/{bits}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for text in ["tun:mp0,10.78.0.2/24", "tun:mp%d,fd78::2/64,10.78.0.1/30"] {
            assert_eq!(text.parse::<TunNetwork>().expect(text).to_string(), text);
        }
        let wrong = [
            "mp0,10.78.0.2/24",
            "tun:,10.78.0.2/24",
            "tun:mp0",
            "tun:mp0,",
            "tun:mp0,10.78.0.2",
            "tun:mp0,10.78.0.2/31",
            "tun:mp0,10.78.0.2/0",
            "tun:mp0,10.78.0.2/24,10.79.0.2/24",
        ];
        for text in wrong {
            assert!(text.parse::<TunNetwork>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_kernel_gets_the_first_other_address() {
        let other = |text: &str| first_other(&prefix(text).expect(text)).to_string();
        assert_eq!(other("10.78.0.2/24"), "10.78.0.1");
        assert_eq!(other("10.78.0.1/24"), "10.78.0.2");
        assert_eq!(other("10.78.0.6/30"), "10.78.0.5");
        assert_eq!(other("fd78::2/64"), "fd78::1");
        assert_eq!(other("fd78::1/64"), "fd78::2");
    }
}
