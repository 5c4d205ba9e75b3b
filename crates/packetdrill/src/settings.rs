//! Settings that a script makes by commands.

use std::time::Duration;

use tcp::{Config, Offers};

use crate::Cause;

/// What differs from a host's defaults.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settings {
    receive_buffer: Option<u32>,
    /// The scale of our SYN is what the script asks for, and not compared loosely.
    pub(crate) scales: bool,
    rto_initial: Option<Duration>,
    delayed_ack: Option<Duration>,
    attempt: Option<Duration>,
    keep_alive: Option<Duration>,
    keep_alive_interval: Option<Duration>,
    probes: Option<u8>,
    offers: Offers,
    /// SYNs ask for congestion notification, and how many repeated ones do.
    asks_for_ecn: bool,
    ecn_repeats: Option<u8>,
    ignores_icmp: bool,
}

/// Settings of FreeBSD that our stack always has, or that nothing here can see.
const SAME: [&str; 11] = [
    "net.inet.tcp.hostcache.purgenow=1",
    "net.inet.tcp.blackhole=0",
    "kern.ipc.maxsockbuf=2097152",
    "net.inet.tcp.sendspace=32768",
    "net.inet.tcp.insecure_rst=0",
    "net.inet.tcp.insecure_syn=0",
    "net.inet.tcp.drop_synfin=0",
    "net.inet.tcp.tolerate_missing_ts=0",
    "net.inet.tcp.rexmit_slop=200",
    "net.inet.tcp.syncookies=1",
    "net.inet.tcp.syncookies_only=0",
];

/// The repeated SYN from which on FreeBSD leaves options out, if it does.
const PLAIN_REPEAT: u8 = 3;

/// Repeated SYNs of FreeBSD that ask for congestion notification, if a script does not set their number.
const ECN_REPEATS: u8 = 1;

impl Settings {
    /// TCP_NOOPT: here of the host, as no script has a second socket with other options.
    pub(crate) fn offer_nothing(&mut self) {
        self.offers = Offers { mss: false, scale: false, sack: false, timestamps: false, ..self.offers };
    }

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
            "net.inet.tcp.keepinit" => self.attempt = millis()?,
            "net.inet.tcp.keepidle" => self.keep_alive = millis()?,
            "net.inet.tcp.keepintvl" => self.keep_alive_interval = millis()?,
            "net.inet.tcp.keepcnt" => self.probes = Some(value.parse().map_err(|_| unsupported())?),
            "net.inet.tcp.rfc1323" => {
                self.offers.scale = value == "1";
                self.offers.timestamps = value == "1";
            }
            "net.inet.tcp.sack.enable" => self.offers.sack = value == "1",
            "net.inet.tcp.rexmit_drop_options" => {
                self.offers.plain_repeat = if value == "1" { PLAIN_REPEAT } else { u8::MAX };
            }
            // With 2 those of peers are answered alone.
            "net.inet.tcp.ecn.enable" if matches!(value, "1" | "2") => self.asks_for_ecn = value == "1",
            "net.inet.tcp.ecn.maxretries" => {
                self.ecn_repeats = Some(value.parse().map_err(|_| unsupported())?);
            }
            "net.inet.tcp.icmp_may_rst" => self.ignores_icmp = value == "0",
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
        let ecn =
            if self.asks_for_ecn { self.ecn_repeats.unwrap_or(ECN_REPEATS).saturating_add(1) } else { 0 };
        config.offers = Offers { ecn, ..self.offers };
        config.icmp_ends_attempts = !self.ignores_icmp;
        profile.attempt = self.attempt.unwrap_or(profile.attempt);
        profile.keep_alive = self.keep_alive.unwrap_or(profile.keep_alive);
        profile.keep_alive_interval = self.keep_alive_interval.unwrap_or(profile.keep_alive_interval);
        profile.probes = self.probes.unwrap_or(profile.probes);
        limits.receive_buffer = self.receive_buffer.unwrap_or(65_535);
        profile.rto_initial = self.rto_initial.unwrap_or(profile.rto_initial);
        profile.delayed_ack = self.delayed_ack.unwrap_or(profile.delayed_ack);
    }
}
