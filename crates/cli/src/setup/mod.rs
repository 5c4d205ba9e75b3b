//! `megapipe setup`: the one step that lets programs of several users share memory on this host.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use promote::Place;
use promote::client::POLICY_FILE;

use policy::Found;
use service::Service;
use users::Pair;

use crate::doctor::System;
use crate::programs;

mod network;
mod policy;
mod service;
mod users;

pub(crate) use users::described;

/// Let programs share memory on this host: write the monitor's policy, and enable its service
///
/// With --network instead: spread packets and connections over the CPUs, where that is off.
///
/// Programs of the same user share, root's included. With --allow, so do programs of the two users that it names. Users that
/// an earlier setup allowed stay allowed. A policy file that was not written by setup, or was edited since, is not
/// changed: setup prints the lines to add.
///
/// Exit status: 0 if everything is as asked for, 1 if not, 2 if an option is not valid.
#[derive(Args)]
#[command(
    override_usage = "megapipe setup [--allow A[:B]]...\n       megapipe setup --network\n       megapipe setup [--network] --undo",
    after_long_help = NOTES
)]
pub(crate) struct Arguments {
    /// Let programs of user A share with those of user B, whichever connects, at any port; A alone: A's with each other
    #[arg(long, value_name = "A[:B]", value_parser = users::pair)]
    allow: Vec<(String, String)>,

    /// Remove the policy and disable the service if setup wrote and enabled them, and list the programs that still run
    /// under Megapipe
    #[arg(long, conflicts_with = "allow")]
    undo: bool,

    /// Until the next boot: RPS on cards with fewer queues than CPUs, RFS where there is RPS, XPS, and migration of waiting
    /// connections (tcp_migrate_req)
    ///
    /// With --undo: each of these settings as it was, unless it was changed since; the policy stays.
    #[arg(long, conflicts_with = "allow")]
    network: bool,
}

const NOTES: &str = "\
Examples:
  sudo megapipe setup                               programs of one user, for every user
  sudo megapipe setup --allow postgres:www-data     the database and the web server
  sudo megapipe setup --undo
  sudo megapipe setup --network                     as `megapipe doctor` proposes

See also: megapipe-monitor(1), megapipe-doctor(1); docs/monitor.md in the sources.";

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let outcome = match () {
        () if !rustix::process::geteuid().is_root() => Err(format!(
            "only root may change this system; type: sudo megapipe setup{}",
            as_typed(&arguments)
        )),
        () if arguments.network && arguments.undo => network::undo(&System::this()),
        () if arguments.network => network::set(&System::this()),
        () if arguments.undo => undo(),
        () => allow(&arguments.allow),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("megapipe setup: {message}");
            ExitCode::FAILURE
        }
    }
}

fn as_typed(arguments: &Arguments) -> String {
    let network = if arguments.network { " --network" } else { "" };
    let undo = if arguments.undo { " --undo" } else { "" };
    let pairs = arguments.allow.iter().map(|(one, other)| match one == other {
        true => format!(" --allow {one}"),
        false => format!(" --allow {one}:{other}"),
    });
    pairs.chain([network.to_owned(), undo.to_owned()]).collect()
}

fn allow(named: &[(String, String)]) -> Result<(), String> {
    let pairs: Vec<Pair> = named.iter().map(Pair::find).collect::<Result<_, _>>()?;
    let before = match policy::read()? {
        Found::Nothing => None,
        Found::Ours(written) => Some(written),
        Found::Other(why) => {
            return Err(format!("{POLICY_FILE} {why}, so setup does not change it; {}", by_hand(&pairs)));
        }
    };
    let service = Service::find();
    let mut policy = before.clone().unwrap_or_default();
    policy.add(&pairs);
    policy.enabled |= matches!(service, Service::Disabled);
    if before.as_ref() == Some(&policy) {
        println!("{POLICY_FILE} allows this already; it is unchanged");
    } else {
        policy::write(&policy)?;
        println!("wrote {POLICY_FILE}");
    }
    println!("  programs of the same user share memory; this includes root's");
    for pair in &pairs {
        println!("  {pair}");
    }
    service.enable()?;
    println!(
        "next: start both programs with `megapipe run -- PROGRAM`; to check one first: megapipe doctor PROGRAM"
    );
    Ok(())
}

/// What a policy that setup did not write needs.
fn by_hand(pairs: &[Pair]) -> String {
    if pairs.is_empty() {
        return "add this line at its beginning:\nsame_user = true".into();
    }
    let rules: String = pairs.iter().map(Pair::as_table).collect();
    format!("add this at its end (if it has a list `allow = [...]`, add the rules to that list):\n{rules}")
}

fn undo() -> Result<(), String> {
    // A monitor that ends here is asked before.
    let running = running();
    match policy::read()? {
        Found::Nothing => println!("there is no {POLICY_FILE}"),
        Found::Ours(written) => {
            policy::remove()?;
            println!("removed {POLICY_FILE}");
            if written.enabled {
                Service::disable()?;
            }
        }
        Found::Other(why) => {
            let stop = match Service::find() {
                Service::Enabled | Service::Disabled => {
                    format!(", and stop the monitor with: systemctl disable --now {}", service::UNIT)
                }
                Service::NotInstalled | Service::NoSystemd => String::new(),
            };
            return Err(format!(
                "{POLICY_FILE} {why}, so setup does not remove it; to do so: rm {POLICY_FILE}{stop}"
            ));
        }
    }
    Service::find().tell_what_remains();
    if running.is_empty() {
        println!("no program runs under Megapipe");
    } else {
        println!(
            "these programs run under Megapipe until they are started anew; their promoted connections stay in shared memory:"
        );
        running.iter().for_each(|line| println!("  {line}"));
    }
    Ok(())
}

/// Programs into which `megapipe run` loaded its library, and those that are connected to the monitors of the system and of
/// root: a server of this project's API has no library, and one that is idle no monitor.
fn running() -> Vec<String> {
    let with_library = programs::with_library().into_iter();
    let mut found: BTreeMap<u32, (String, u32)> =
        with_library.filter_map(|pid| Some((pid, programs::name_and_user(pid)?))).collect();
    for place in promote::viewer::places(None) {
        let Ok(view) = crate::monitors::ask(&place) else { continue };
        for client in view.loops {
            found.entry(client.pid).or_insert((client.name.to_string(), client.uid));
        }
    }
    let line = |(pid, (name, user))| format!("{name} (pid {pid}, user {})", described(user));
    found.into_iter().map(line).collect()
}

/// Whether a monitor answers at the system's place.
fn system_monitor() -> Option<u32> {
    Some(crate::monitors::ask(&Place::system()).ok()?.totals.pid)
}
