//! Processes of this program that are part of a measurement. What each is to do travels as JSON.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::process::{self, Command};
use std::thread;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Reason, with_causes};

/// The hidden verb under which the program is one of them.
pub const VERB: &str = "part";

/// What such a process does. It ends with its controller.
pub trait Part: Serialize + DeserializeOwned {
    /// What names it among the others.
    const NAME: &'static str;

    /// Does it. What the controller waits for is printed as JSON.
    fn run(self) -> Result<(), Reason>;

    /// The arguments of the command that makes a process of this program this part.
    fn arguments(&self) -> [String; 3] {
        let json = serde_json::to_string(self).expect("numbers and names are JSON");
        [VERB.to_owned(), Self::NAME.to_owned(), json]
    }

    /// That command.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.args(self.arguments());
        command
    }
}

/// Does what the arguments behind the name say.
pub fn run<P: Part>(json: &str) -> Result<(), Reason> {
    serde_json::from_str::<P>(json)?.run()
}

/// Prints that this process serves, and perhaps where, which [`crate::child::Child::listening`] waits for.
pub(crate) fn listening(place: impl Display) {
    let mut stdout = io::stdout();
    // With a controller that is gone this process ends.
    let _ = writeln!(stdout, "listening {place}");
    let _ = stdout.flush();
}

/// Starts a thread of a server, which ends with it by an error: one that lost a thread must not be measured as if it
/// were whole.
pub(crate) fn start_thread(
    name: impl Into<String>,
    work: impl FnOnce() -> Result<(), Reason> + Send + 'static,
) -> io::Result<()> {
    let work = move || {
        if let Err(error) = work() {
            eprintln!("{}", with_causes(&*error));
            process::exit(1);
        }
    };
    thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

/// Prints what the controller waits for.
pub(crate) fn print(report: &impl Serialize) -> Result<(), Reason> {
    println!("{}", serde_json::to_string(report)?);
    io::stdout().flush()?;
    Ok(())
}
