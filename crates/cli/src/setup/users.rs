//! Users, as the policy and as people name them.

use std::fmt;

/// Two users whose programs may share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) one: u32,
    pub(super) other: u32,
    /// As they were named.
    names: (String, String),
}

/// `A:B`, or `A` for a user with himself.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    let (one, other) = text.split_once(':').unwrap_or((text, text));
    if one.is_empty() || other.is_empty() || other.contains(':') {
        return Err("expected one user, or two separated by a colon, as in postgres:www-data".into());
    }
    Ok((one.into(), other.into()))
}

impl Pair {
    pub(super) fn find((one, other): &(String, String)) -> Result<Pair, String> {
        Ok(Pair { one: number(one)?, other: number(other)?, names: (one.clone(), other.clone()) })
    }

    /// Whether the rule is the same: which of the two comes first is no matter.
    pub(super) fn is(&self, one: u32, other: u32) -> bool {
        (self.one, self.other) == (one, other) || (self.one, self.other) == (other, one)
    }

    /// An entry of the list `allow`.
    pub(super) fn as_entry(&self) -> String {
        let (one, other) = &self.names;
        format!(
            "  {{ one = {{ uid = [{}] }}, other = {{ uid = [{}] }} }}, # {one} and {other}\n",
            self.one, self.other
        )
    }

    /// What [`Pair::as_entry`] wrote.
    pub(super) fn of_entry(line: &str) -> Option<Pair> {
        let line = line.trim();
        let mut numbers = line.split(['[', ']']).skip(1).step_by(2).map(str::parse);
        let (_, names) = line.split_once("# ")?;
        let (one, other) = names.split_once(" and ")?;
        let pair = Pair {
            one: numbers.next()?.ok()?,
            other: numbers.next()?.ok()?,
            names: (one.into(), other.into()),
        };
        (pair.as_entry().trim() == line).then_some(pair)
    }

    /// The same for the end of any policy.
    pub(super) fn as_table(&self) -> String {
        format!(
            "[[allow]] # {self}\none = {{ uid = [{}] }}\nother = {{ uid = [{}] }}\n",
            self.one, self.other
        )
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |name: &str, number: u32| match name.parse() == Ok(number) {
            true => format!("user {number}"),
            false => format!("{name} ({number})"),
        };
        let one = named(&self.names.0, self.one);
        if self.one == self.other {
            return write!(formatter, "programs of {one} share memory with each other");
        }
        write!(formatter, "programs of {one} and {} share memory", named(&self.names.1, self.other))
    }
}

/// A name comes first, as for chown(1): a user may be called 42.
fn number(name: &str) -> Result<u32, String> {
    match sys::user::number(name) {
        Ok(Some(number)) => Ok(number),
        // The last number stands for no user in system calls.
        Ok(None) => name.parse().ok().filter(|number| *number != u32::MAX).ok_or_else(|| {
            format!("there is no user '{name}' on this host; `getent passwd` lists the users; a number (uid) works, too")
        }),
        Err(error) => Err(format!("the users of this host cannot be read: {error}; name '{name}' by its number")),
    }
}

/// `redis (101)`, or the number alone.
pub(crate) fn described(number: u32) -> String {
    match sys::user::name(number) {
        Ok(Some(name)) => format!("{name} ({number})"),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_one_user_or_two() {
        assert_eq!(pair("a:b"), Ok(("a".into(), "b".into())));
        assert_eq!(pair("a"), Ok(("a".into(), "a".into())));
        for wrong in ["", ":", "a:", ":b", "a:b:c"] {
            assert!(pair(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let pair = Pair { one: 26, other: 33, names: ("postgres".into(), "www-data".into()) };
        assert_eq!(Pair::of_entry(&pair.as_entry()), Some(pair.clone()));
        assert_eq!(Pair::of_entry("{ one = { uid = [26] }, other = {} }, # a and b"), None);
        assert!(pair.is(33, 26) && pair.is(26, 33) && !pair.is(26, 26));
    }
}
