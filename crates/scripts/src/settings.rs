//! Settings that a script makes by commands.

use std::time::Duration;

use tcp::Config;

use crate::Cause;

/// What differs from a host's defaults. Holds for the whole script.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settings {
    receive_buffer: Option<u32>,
    /// The scale of our SYN is what the script asks for, and not compared loosely.
    pub(crate) scales: bool,
    rto_initial: Option<Duration>,
    delayed_ack: Option<Duration>,
}

/// Settings of FreeBSD that our stack always has, or that nothing here can see.
const SAME: [&str; 18] = [
    "net.inet.tcp.hostcache.purgenow=1",
    "net.inet.tcp.sack.enable=1",
    "net.inet.tcp.ecn.enable=2",
    "net.inet.tcp.rfc1323=1",
    "net.inet.tcp.blackhole=0",
    "kern.ipc.maxsockbuf=2097152",
    "net.inet.tcp.sendspace=32768",
    "net.inet.tcp.insecure_rst=0",
    "net.inet.tcp.insecure_syn=0",
    "net.inet.tcp.drop_synfin=0",
    "net.inet.tcp.rexmit_drop_options=0",
    "net.inet.tcp.rexmit_slop=200",
    "net.inet.tcp.icmp_may_rst=1",
    "net.inet.tcp.keepidle=7200000",
    "net.inet.tcp.keepintvl=75000",
    "net.inet.tcp.keepinit=75000",
    "net.inet.tcp.syncookies=1",
    "net.inet.tcp.syncookies_only=0",
];

impl Settings {
    /// A line with a command. `sockstat` and `tcpdrop` are skipped: nothing here lists sockets.
    pub(crate) fn command(&mut self, line: &str) -> Result<(), Cause> {
        let unsupported = || Cause::Unsupported(line.to_string());
        let command = line.split('`').nth(1).unwrap_or_default().trim();
        if command.starts_with("sockstat ") || command.starts_with("tcpdrop ") {
            return Ok(());
        }
        let setting = command.strip_prefix("sysctl -w ").ok_or_else(unsupported)?.trim();
        let (name, value) = setting.split_once('=').ok_or_else(unsupported)?;
        let number = || value.parse::<u32>().map_err(|_| unsupported());
        let millis = || number().map(|millis| Some(Duration::from_millis(millis.into())));
        match name {
            // FreeBSD rounds it to whole segments when a connection opens.
            // FreeBSD's scale is the least that can offer this. A connection that gets further than
            // its SYN would see other windows.
            "kern.ipc.maxsockbuf" if !SAME.contains(&setting) => {
                self.receive_buffer = Some(number()?.min(1 << 30));
                self.scales = true;
            }
            "net.inet.tcp.recvspace" => self.receive_buffer = Some(number()?.next_multiple_of(1460)),
            "net.inet.tcp.rexmit_initial" => self.rto_initial = millis()?,
            "net.inet.tcp.delacktime" => self.delayed_ack = millis()?,
            _ if SAME.contains(&setting) => {}
            _ => return Err(unsupported()),
        }
        Ok(())
    }

    pub(crate) fn apply(&self, config: &mut Config, foreign: bool) {
        let (limits, profile) = (&mut config.limits, &mut config.profile);
        if foreign {
            // FreeBSD delays from the first acknowledgement on.
            profile.quick_acks = 0;
        }
        limits.receive_buffer = self.receive_buffer.unwrap_or(65_535);
        profile.rto_initial = self.rto_initial.unwrap_or(profile.rto_initial);
        profile.delayed_ack = self.delayed_ack.unwrap_or(profile.delayed_ack);
    }
}
