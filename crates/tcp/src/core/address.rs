//! Addresses of IPv4 and IPv6 as one type.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address, IPv4 as an IPv4-mapped one (RFC 4291, 2.5.5.2): two numbers, which are compared and
/// copied without looking at the family. Those of IPv6 packets are never mapped.
#[derive(Clone, Copy)]
#[repr(Rust, packed(4))]
pub(crate) struct Address {
    upper: u64,
    lower: u64,
}

/// The lower half of a mapped address, without the IPv4 address.
const MAPPED: u64 = 0xffff << 32;

impl Address {
    #[inline]
    pub(crate) fn of_v4(octets: [u8; 4]) -> Address {
        Address { upper: 0, lower: MAPPED | u64::from(u32::from_be_bytes(octets)) }
    }

    pub(crate) fn of_v6(octets: [u8; 16]) -> Address {
        let bits = u128::from_be_bytes(octets);
        Address { upper: (bits >> 64) as u64, lower: bits as u64 }
    }

    /// The IPv4 address, if it is one.
    #[inline]
    pub(crate) fn v4(self) -> Option<u32> {
        self.is_v4().then_some(self.lower as u32)
    }

    /// Two IPv4 addresses, if they are. Those of a packet are of one family.
    #[inline]
    pub(crate) fn v4_with(self, other: Address) -> Option<(u32, u32)> {
        self.is_v4().then_some((self.lower as u32, other.lower as u32))
    }

    #[inline]
    pub(crate) fn is_v4(self) -> bool {
        self.upper == 0 && self.lower & !0xffff_ffff == MAPPED
    }

    /// As IPv6 has it.
    pub(crate) fn octets(self) -> [u8; 16] {
        (u128::from(self.upper) << 64 | u128::from(self.lower)).to_be_bytes()
    }

    /// Whether it can be that of one host on a network (RFC 9293, MUST-46, MUST-57 and MUST-63;
    /// RFC 1122, 3.2.1.3).
    #[inline]
    pub(crate) fn is_unicast(self) -> bool {
        match self.v4() {
            Some(v4) => v4 != 0 && v4 != u32::MAX && v4 >> 24 != 127 && v4 >> 28 != 0xe,
            // Neither unspecified nor loopback, nor multicast.
            None => (self.upper != 0 || self.lower > 1) && self.upper >> 56 != 0xff,
        }
    }
}

impl PartialEq for Address {
    /// Both halves in any case: a comparison of 16 bytes at once would wait for the two stores that have
    /// just written them.
    #[inline]
    fn eq(&self, other: &Address) -> bool {
        (self.upper == other.upper) & (self.lower == other.lower)
    }
}

impl Eq for Address {}

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Address {
        match address {
            IpAddr::V4(v4) => Address::of_v4(v4.octets()),
            IpAddr::V6(v6) => Address::of_v6(v6.octets()),
        }
    }
}

impl From<Address> for IpAddr {
    fn from(address: Address) -> IpAddr {
        match address.v4() {
            Some(v4) => Ipv4Addr::from_bits(v4).into(),
            None => Ipv6Addr::from(address.octets()).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// What goes in comes out, and only equals are equal.
        #[test]
        fn addresses_are_kept(v4: [u8; 4], v6: [u8; 16], other: [u8; 16]) {
            for address in [IpAddr::from(v4), IpAddr::from(v6).to_canonical()] {
                prop_assert_eq!(IpAddr::from(Address::from(address)), address);
                prop_assert_eq!(Address::from(address).is_v4(), address.is_ipv4());
            }
            prop_assert_eq!(Address::of_v6(v6) == Address::of_v6(other), v6 == other);
            prop_assert_eq!(Address::of_v6(v6).octets(), v6);
        }
    }

    #[test]
    fn some_are_no_hosts() {
        let is_host = |text: &str| Address::from(text.parse::<IpAddr>().expect("an address")).is_unicast();
        assert!(
            ["10.0.0.1", "223.255.255.255", "240.0.0.1", "fe80::1", "::2", "2001:db8::1"]
                .map(is_host)
                .iter()
                .all(|&is| is)
        );
        let others =
            ["0.0.0.0", "127.1.2.3", "224.0.0.1", "239.9.9.9", "255.255.255.255", "::", "::1", "ff02::1"];
        assert!(!others.map(is_host).iter().any(|&is| is));
    }
}
