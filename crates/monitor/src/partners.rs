//! The effect of a policy on the programs of one user, as far as users alone decide: for
//! people, who ask before there is a connection.

use std::collections::BTreeSet;

use promote::wire::Text;
use promote::wire::view::Allowed;

use crate::policy::{Policy, Rule, Who};

/// No user has this number (chown(2)).
const NO_USER: u32 = u32::MAX;

/// With whom a user's programs share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Partners {
    /// These users, perhaps the user itself among them.
    users: BTreeSet<u32>,
    /// All others, too.
    everybody: bool,
    /// Rules about this user that depend on more: group, control group, port or address.
    conditional: usize,
}

/// Whom a side of a rule names by user alone.
enum Side<'a> {
    Any,
    Users(&'a [u32]),
}

impl Policy {
    /// The users that it lets programs of `user` share with, under a monitor of the user
    /// `monitor`. Namespaces (root's own monitor) are assumed to be the same.
    fn partners(&self, monitor: u32, user: u32) -> Partners {
        let mut found = Partners::default();
        if self.same_user.unwrap_or(user == monitor) {
            found.users.insert(user);
        }
        for other in self.allow.iter().flat_map(|rule| rule.others(user)) {
            match other {
                Some(Side::Any) => found.everybody = true,
                Some(Side::Users(users)) => found.users.extend(users),
                None => found.conditional += 1,
            }
        }
        for other in self.deny.iter().flat_map(|rule| rule.others(user)) {
            match other {
                Some(Side::Any) => (found.everybody, found.users) = (false, BTreeSet::new()),
                Some(Side::Users(users)) => {
                    // "Everybody but these" cannot be listed: it counts as conditional.
                    found.conditional += usize::from(found.everybody);
                    found.users.retain(|user| !users.contains(user));
                }
                None => found.conditional += 1,
            }
        }
        found
    }

    /// The same as a record, of a policy from the file `source`; empty: the built-in one.
    pub fn allowed(&self, monitor: u32, user: u32, source: &str) -> Allowed {
        let partners = self.partners(monitor, user);
        let by_rules = self.partners(NO_USER, user);
        let mut allowed = Allowed::new(user, &partners.users);
        allowed.everybody = partners.everybody;
        allowed.by_default = partners.users.contains(&user) && !by_rules.users.contains(&user);
        allowed.conditional = partners.conditional.try_into().unwrap_or(u32::MAX);
        allowed.source = Text::new(source);
        allowed
    }
}

impl Rule {
    /// The sides that this user may share with by the rule; `None` for one that depends
    /// on more.
    fn others(&self, user: u32) -> impl Iterator<Item = Option<Side<'_>>> {
        let plain = self.ports.is_none()
            && self.addresses.is_none()
            && self.one.needs_only_user()
            && self.other.needs_only_user();
        let sides = [(&self.one, &self.other), (&self.other, &self.one)].into_iter();
        let of_user = sides.filter(move |(own, _)| own.names(user)).map(|(_, other)| other);
        of_user.map(move |other| plain.then(|| other.uid.as_deref().map_or(Side::Any, Side::Users)))
    }
}

impl Who {
    /// Whether it holds for a program of this user, as far as the user decides.
    pub(crate) fn names(&self, user: u32) -> bool {
        self.uid.as_ref().is_none_or(|users| users.contains(&user))
    }

    /// Whether the user alone decides.
    pub(crate) fn needs_only_user(&self) -> bool {
        self.gid.is_none() && self.cgroup.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn partners(text: &str, monitor: u32, user: u32) -> Partners {
        Policy::parse(text, Path::new("p.toml")).unwrap().partners(monitor, user)
    }

    fn users(users: &[u32]) -> Partners {
        Partners { users: users.iter().copied().collect(), ..Partners::default() }
    }

    const PAIR: &str = "[[allow]]\none = { uid = [26] }\nother = { uid = [33, 34] }\n";

    #[test]
    fn users_are_those_of_the_rules() {
        assert_eq!(partners("", 0, 1000), users(&[]));
        assert_eq!(partners("", 1000, 1000), users(&[1000]));
        assert_eq!(partners("same_user = true", 0, 1000), users(&[1000]));
        assert_eq!(partners("same_user = false", 1000, 1000), users(&[]));
        assert_eq!(partners(PAIR, 0, 26), users(&[33, 34]));
        assert_eq!(partners(PAIR, 0, 34), users(&[26]));
        assert_eq!(partners(&format!("{PAIR}ports = [80]\n"), 0, 26).conditional, 1);
        let anybody = "[[allow]]\none = { uid = [26] }\nother = {}\n";
        assert!(partners(anybody, 0, 26).everybody);
        assert_eq!(partners(anybody, 0, 33), users(&[26]));
    }

    #[test]
    fn a_denial_is_stronger() {
        let denied = format!("{PAIR}[[deny]]\none = {{ uid = [33] }}\nother = {{}}\n");
        assert_eq!(partners(&denied, 0, 26), users(&[34]));
        assert_eq!(partners(&denied, 0, 33), users(&[]));
        let not_root = "[[allow]]\none = {}\nother = {}\n[[deny]]\none = { uid = [0] }\nother = {}\n";
        let found = partners(not_root, 0, 1000);
        assert!(found.everybody && found.conditional > 0, "{found:?}");
    }
}
