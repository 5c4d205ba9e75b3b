//! Processes of this program that are part of a measurement. What each is to do travels as JSON.

use std::io;
use std::path::Path;
use std::process::Command;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Reason;

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

/// Prints a word that the controller waits for.
pub(crate) fn print_word(word: &str) -> io::Result<()> {
    println!("{word}");
    io::Write::flush(&mut io::stdout())
}

/// Prints what the controller waits for.
pub(crate) fn print(report: &impl Serialize) -> Result<(), Reason> {
    println!("{}", serde_json::to_string(report)?);
    io::Write::flush(&mut io::stdout())?;
    Ok(())
}
