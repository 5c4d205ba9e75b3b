//! Servers and clients that are scripts of the benchmark: what an ordinary program in Python or
//! JavaScript is, with the packages of the distribution.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use super::load::Target;
use super::process::{Ending, Process};
use super::server::{Part, Server, Site, free_port, haproxy, nginx};
use crate::child::Failure;

/// The client; its options are in the script.
pub(super) const CLIENT: &str = "client.py";

/// Writes all scripts into a folder.
pub(super) fn write(folder: &Path) -> io::Result<()> {
    for (name, text) in [
        (CLIENT, include_str!("scripts/client.py")),
        (GRPC_SERVER, include_str!("scripts/grpc_server.py")),
        ("wsgi.py", include_str!("scripts/wsgi.py")),
        (NODE_SERVER, include_str!("scripts/server.js")),
    ] {
        fs::write(folder.join(name), text)?;
    }
    Ok(())
}

pub(super) fn grpc(site: &Site<'_>) -> Result<Server, Failure> {
    let mut command = site.program("python3", Part::Server)?;
    command.arg(site.folder.join(GRPC_SERVER));
    start(command, site, |command, port| command.arg(port.to_string()))
}

/// gunicorn as its documentation deploys it: one synchronous worker, and nginx in front.
pub(super) fn gunicorn(site: &Site<'_>) -> Result<Server, Failure> {
    let mut command = site.program("gunicorn", Part::Server)?;
    command.args(["--log-level", "warning", "--chdir"]).arg(site.folder);
    let behind = start(command, site, |command, port| {
        command.args(["--bind", &format!("127.0.0.1:{port}"), "wsgi:app"])
    })?;
    let front = nginx(&format!("proxy_pass http://127.0.0.1:{};", behind.port()?), site)?;
    Ok(front.before(behind))
}

pub(super) fn haproxy_node(site: &Site<'_>) -> Result<Server, Failure> {
    let mut command = site.program("node", Part::Server)?;
    command.arg(site.folder.join(NODE_SERVER));
    let behind = start(command, site, |command, port| command.arg(port.to_string()))?;
    Ok(haproxy(behind.port()?, site)?.before(behind))
}

/// Starts a server that takes its port as an argument.
fn start(
    mut command: Command,
    site: &Site<'_>,
    at: impl FnOnce(&mut Command, u16) -> &mut Command,
) -> Result<Server, Failure> {
    let port = free_port()?;
    at(&mut command, port);
    let process = Process::start(command, site.folder, &site.server_cpus, Ending::Terminate)?;
    Server::ready(process, Target::Port(port), site)
}

const GRPC_SERVER: &str = "grpc_server.py";
const NODE_SERVER: &str = "server.js";
