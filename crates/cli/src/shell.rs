//! Words for a command that a user will type or paste into a shell.

use std::ffi::OsStr;

/// The word as sh(1) reads it back: in quotes, if it needs them.
pub(crate) fn quoted(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let is_plain = |letter: char| letter.is_alphanumeric() || "%+,-./:=@_".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_the_word_back() {
        for word in ["/usr/bin/env", "my server", "it's", "", "$HOME", "a\tb", "*", "~", "a;b", "\u{e4} b"] {
            let script = format!("printf %s {}", quoted(word.as_ref()));
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
        assert_eq!(quoted("redis-server".as_ref()), "redis-server");
    }
}
