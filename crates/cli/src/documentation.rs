//! `megapipe generate-docs`: man pages and shell completions, made from the definitions that parse the command line,
//! so that they cannot differ from it. Used by `make install`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, CommandFactory};
use clap_complete::Shell;

/// Write man pages and shell completions
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Directory to write to; gets the subdirectories `man` and `completions`
    directory: PathBuf,
}

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    match generate(&arguments.directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("megapipe: cannot write to {}: {error}", arguments.directory.display());
            ExitCode::FAILURE
        }
    }
}

/// The synopsis with the values of options, which clap_mangen leaves out.
fn with_values(verb: Command) -> Command {
    if verb.get_overridden_usage().is_some() {
        return verb;
    }
    let words = verb.get_arguments().filter(|argument| !argument.is_hide_set()).map(|argument| {
        let values = argument.get_value_names().unwrap_or_default().join(" ");
        match argument.get_long() {
            None => format!("[{values}]"),
            Some(name) if argument.get_action().takes_values() => format!("[--{name} {values}]"),
            Some(name) => format!("[--{name}]"),
        }
    });
    let usage: Vec<String> =
        ["megapipe", verb.get_name()].map(str::to_owned).into_iter().chain(words).collect();
    verb.override_usage(usage.join(" "))
}

fn generate(directory: &Path) -> io::Result<()> {
    let man = directory.join("man");
    fs::create_dir_all(&man)?;
    clap_mangen::generate_to(crate::Arguments::command().mut_subcommands(with_values), &man)?;

    let completions = directory.join("completions");
    fs::create_dir_all(&completions)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut crate::Arguments::command(), "megapipe", &completions)?;
    }
    Ok(())
}
