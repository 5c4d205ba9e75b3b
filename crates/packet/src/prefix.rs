//! Ranges of addresses.

use std::net::IpAddr;

/// A range of addresses: all that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// One of them: that of a host which has a prefix.
    pub address: IpAddr,
    /// How many leading bits are the same.
    pub bits: u8,
}

impl Prefix {
    /// One address alone.
    pub fn one(address: IpAddr) -> Prefix {
        Prefix { address, bits: if address.is_ipv4() { 32 } else { 128 } }
    }

    /// Whether an address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                let differ = ours.to_bits() ^ theirs.to_bits();
                differ.leading_zeros() >= u32::from(self.bits)
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                let differ = ours.to_bits() ^ theirs.to_bits();
                differ.leading_zeros() >= u32::from(self.bits)
            }
            _ => false,
        }
    }
}
