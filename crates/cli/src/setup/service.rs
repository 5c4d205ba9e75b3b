//! The monitor's unit, where systemd runs.

use std::path::Path;
use std::process::{Command, Stdio};

use promote::SYSTEM_SOCKET;

/// systemd starts the monitor with the first client.
pub(super) const UNIT: &str = "megapipe-monitor.socket";

/// How the monitor of the system starts.
pub(super) enum Service {
    /// The unit is enabled.
    Enabled,
    /// It is not.
    Disabled,
    /// There is no such unit.
    NotInstalled,
    /// systemd does not run (sd_booted(3)).
    NoSystemd,
}

impl Service {
    pub(super) fn find() -> Service {
        if !Path::new("/run/systemd/system").is_dir() {
            return Service::NoSystemd;
        }
        let asked = command(&["is-enabled", UNIT]).stderr(Stdio::null()).output();
        let said = asked.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        match said.unwrap_or_default().as_str() {
            "enabled" => Service::Enabled,
            "" | "not-found" => Service::NotInstalled,
            _ => Service::Disabled,
        }
    }

    /// Enables the monitor, or explains how.
    pub(super) fn enable(&self) -> Result<(), String> {
        match self {
            Service::Enabled | Service::Disabled => {
                systemctl(&["enable", "--now", UNIT]).map_err(|said| match super::system_monitor() {
                    Some(pid) => format!(
                        "{UNIT} is enabled, but not started, as another monitor listens at {SYSTEM_SOCKET} (pid {pid}); \
                         that one uses the policy from now on; to replace it by systemd's: kill {pid}; systemctl start {UNIT}"
                    ),
                    None => format!("{UNIT} cannot be started ({said}); see: systemctl status {UNIT}"),
                })?;
                println!(
                    "{UNIT} is enabled: systemd starts the monitor with the first program that needs it"
                );
            }
            Service::NotInstalled => {
                return Err(format!(
                    "systemd has no unit {UNIT}, which `make install` and the package install; until then start the \
                     monitor with: megapipe monitor"
                ));
            }
            Service::NoSystemd => match super::system_monitor() {
                Some(pid) => {
                    println!(
                        "the monitor at {SYSTEM_SOCKET} (pid {pid}) reads the policy when the next program connects"
                    );
                }
                None => println!(
                    "systemd does not run here; start the monitor as root, now and at each boot, with: megapipe monitor &"
                ),
            },
        }
        Ok(())
    }

    pub(super) fn disable() -> Result<(), String> {
        if let Service::Enabled | Service::Disabled = Service::find() {
            systemctl(&["disable", "--now", UNIT]).map_err(|said| {
                format!("{UNIT} cannot be disabled ({said}); type: systemctl disable --now {UNIT}")
            })?;
            println!("disabled {UNIT}");
        }
        Ok(())
    }

    /// After `--undo`: the monitor that still serves, and how to stop it.
    pub(super) fn tell_what_remains(&self) {
        if let Service::Enabled = self {
            println!("{UNIT} is enabled; to disable and stop it: systemctl disable --now {UNIT}");
            return;
        }
        if let Some(pid) = super::system_monitor() {
            println!("the monitor at {SYSTEM_SOCKET} (pid {pid}) still runs; to stop it: kill {pid}");
        }
    }
}

/// # Errors
///
/// What it printed.
fn systemctl(arguments: &[&str]) -> Result<(), String> {
    let output = command(arguments).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
    if output.status.success() { Ok(()) } else { Err(said) }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new("systemctl");
    command.args(arguments).env("LC_ALL", "C");
    command
}
