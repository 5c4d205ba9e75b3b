//! Which programs share memory, decided by what the kernel reports of two programs and
//! their connection:
//!
//! 1. If a `deny` rule matches, they do not share. Otherwise, if an `allow` rule matches,
//!    they do.
//! 2. `same_user = true`: two programs of one user share, root's included, wherever they
//!    run. `same_user = false`: they do not.
//! 3. Without that key: the programs of the monitor's own user share, those of no other.
//!    If that is root, both must be in the monitor's user namespace and their connection in
//!    its network namespace, since root of a container is not root of the host. What cannot
//!    be read is another namespace.

use std::net::SocketAddr;

use promote::Reason;

use crate::policy::{ControlGroup, Policy, Rule, Who};

/// The kernel's account of a program that offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    /// User, real and effective.
    pub(crate) uid: u32,
    /// Group, likewise.
    pub(crate) gid: u32,
    /// Path of its control group (version 2), where it could be read.
    pub(crate) cgroup: Option<String>,
    /// It was seen to be in the monitor's user namespace. Only root is asked.
    pub(crate) in_user_namespace: bool,
}

/// The kernel's account of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    pub(crate) addresses: [SocketAddr; 2],
    /// It is of the monitor's network namespace.
    pub(crate) in_network_namespace: bool,
}

/// Whether two programs may share the memory of their connection, in a monitor of this user, or
/// what stands between them.
pub(crate) fn permits(
    policy: &Policy,
    monitor: u32,
    parties: [&Subject; 2],
    connection: Connection,
) -> Result<(), Reason> {
    let matches = |rule: &Rule| {
        let sides = parties.map(|subject| move |who: &Who| who.matches(subject));
        rule.matches(sides.each_ref().map(|side| side as Side<'_>), connection.addresses)
    };
    if policy.deny.iter().any(matches) {
        return Err(Reason::Policy);
    }
    if policy.allow.iter().any(matches) {
        return Ok(());
    }
    let [one, other] = parties;
    if one.uid != other.uid {
        return Err(Reason::OtherUser);
    }
    let here = connection.in_network_namespace && parties.iter().all(|party| party.in_user_namespace);
    match policy.same_user {
        Some(true) => Ok(()),
        None if one.uid == monitor && (one.uid != 0 || here) => Ok(()),
        None if one.uid == monitor => Err(Reason::Namespace),
        None | Some(false) => Err(Reason::Policy),
    }
}

/// Whether a program may share with some program of another user, or what prevents it.
/// Only the user of that program is known: in `allow` a condition on its group or control
/// group counts as met, in `deny` as not met.
pub(crate) fn may_permit(
    policy: &Policy,
    own: &Subject,
    other: u32,
    addresses: [SocketAddr; 2],
) -> Result<(), Reason> {
    let matches = |rule: &Rule, unknown: bool| {
        let is_own = |who: &Who| who.matches(own);
        let is_other = |who: &Who| who.names(other) && (unknown || who.needs_only_user());
        rule.matches([&is_own, &is_other], addresses)
    };
    if policy.deny.iter().any(|rule| matches(rule, false)) {
        return Err(Reason::Policy);
    }
    policy.allow.iter().any(|rule| matches(rule, true)).then_some(()).ok_or(Reason::OtherUser)
}

/// Whether a program is the one that a rule describes.
type Side<'a> = &'a dyn Fn(&Who) -> bool;

impl Rule {
    fn matches(&self, [a, b]: [Side<'_>; 2], addresses: [SocketAddr; 2]) -> bool {
        let parties = (a(&self.one) && b(&self.other)) || (b(&self.one) && a(&self.other));
        parties
            && self.ports.as_ref().is_none_or(|ports| {
                addresses.iter().any(|address| ports.iter().any(|row| row.contains(address.port())))
            })
            && self.addresses.as_ref().is_none_or(|networks| {
                addresses.iter().all(|address| networks.iter().any(|network| network.contains(address.ip())))
            })
    }
}

impl Who {
    fn matches(&self, subject: &Subject) -> bool {
        let is_below = |group: &ControlGroup| subject.cgroup.as_deref().is_some_and(|path| group.holds(path));
        self.names(subject.uid)
            && self.gid.as_ref().is_none_or(|groups| groups.contains(&subject.gid))
            && self.cgroup.as_ref().is_none_or(is_below)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn policy(text: &str) -> Policy {
        Policy::parse(text, Path::new("p.toml")).unwrap()
    }

    fn subject(uid: u32, gid: u32, cgroup: &str) -> Subject {
        let cgroup = (!cgroup.is_empty()).then(|| cgroup.to_owned());
        Subject { uid, gid, cgroup, in_user_namespace: true }
    }

    const LOCAL: [&str; 2] = ["127.0.0.1:40000", "127.0.0.1:6379"];

    const SHARED: Result<(), Reason> = Ok(());
    const STRANGERS: Result<(), Reason> = Err(Reason::OtherUser);
    const FORBIDDEN: Result<(), Reason> = Err(Reason::Policy);
    const AWAY: Result<(), Reason> = Err(Reason::Namespace);

    fn decided(
        policy: &Policy,
        monitor: u32,
        [a, b]: [&Subject; 2],
        addresses: [&str; 2],
        in_network_namespace: bool,
    ) -> Result<(), Reason> {
        let addresses = addresses.map(|address| address.parse().unwrap());
        let [near, far] = addresses;
        let outcome = permits(policy, monitor, [a, b], Connection { addresses, in_network_namespace });
        let other_way = Connection { addresses: [far, near], in_network_namespace };
        assert_eq!(outcome, permits(policy, monitor, [b, a], other_way), "asked the other way");
        outcome
    }

    fn permits_at(policy: &Policy, a: &Subject, b: &Subject, addresses: [&str; 2]) -> bool {
        decided(policy, 0, [a, b], addresses, true).is_ok()
    }

    /// Policies: without the key, with it, and rules beside it. "Elsewhere" is another user
    /// namespace, or one that cannot be read.
    #[test]
    fn one_user_shares_as_the_key_says() {
        let without = ["", ALLOWS_STRANGERS];
        let with = ["same_user = true\n"];
        let never = ["same_user = false\n", "[[deny]]\none = {}\nother = {}\n"];
        const ALLOWS_STRANGERS: &str = "[[allow]]\none = { uid = [7] }\nother = { uid = [8] }\n";
        let (user, other, root) = (subject(1000, 1, ""), subject(1001, 1, ""), subject(0, 0, ""));
        let elsewhere = Subject { in_user_namespace: false, ..root.clone() };
        let foreign_user = Subject { in_user_namespace: false, ..user.clone() };
        // The monitor's user, the two programs, the connection is in the monitor's network
        // namespace; what stands between them without the key, and with it.
        let rows = [
            (0, [&root, &root], true, SHARED, SHARED),
            (0, [&root, &root], false, AWAY, SHARED),
            (0, [&root, &elsewhere], true, AWAY, SHARED),
            (0, [&elsewhere, &elsewhere], true, AWAY, SHARED),
            (0, [&user, &user], true, FORBIDDEN, SHARED),
            (0, [&root, &user], true, STRANGERS, STRANGERS),
            (1000, [&user, &user], true, SHARED, SHARED),
            // Only root's rights are bound to a namespace.
            (1000, [&user, &user], false, SHARED, SHARED),
            (1000, [&foreign_user, &foreign_user], true, SHARED, SHARED),
            (1000, [&other, &other], true, FORBIDDEN, SHARED),
            (1000, [&user, &other], true, STRANGERS, STRANGERS),
            (1000, [&root, &root], true, FORBIDDEN, SHARED),
            // A monitor that root runs as a user of its own serves those whom its policy names.
            (990, [&user, &user], true, FORBIDDEN, SHARED),
        ];
        for (monitor, parties, here, without_key, with_key) in rows {
            let case = |text: &str| decided(&policy(text), monitor, parties, LOCAL, here);
            let row = (monitor, parties, here);
            without.iter().for_each(|text| assert_eq!(case(text), without_key, "{row:?} {text}"));
            with.iter().for_each(|text| assert_eq!(case(text), with_key, "{row:?} {text}"));
            let [one, denied] = never.map(case);
            assert_eq!(one, if with_key == STRANGERS { STRANGERS } else { FORBIDDEN }, "{row:?}");
            assert_eq!(denied, FORBIDDEN, "{row:?}: no rule that allows would help");
        }
    }

    /// A line a pair, as docs/monitor.md has it: both ways, and any port.
    #[test]
    fn rules_between_users_let_only_them_share() {
        let policy = policy(
            "allow = [\n  { one = { uid = [26] }, other = { uid = [33] } },\n  \
             { one = { uid = [34] }, other = { uid = [34] } },\n]\n",
        );
        let who = [0, 26, 33, 34].map(|uid| subject(uid, uid, ""));
        for a in &who {
            for b in &who {
                let shares = matches!((a.uid, b.uid), (26, 33) | (33, 26) | (34, 34) | (0, 0));
                assert_eq!(permits_at(&policy, a, b, LOCAL), shares, "{a:?} {b:?}");
                assert_eq!(permits_at(&policy, a, b, ["[::1]:1", "[::1]:2"]), shares, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn a_rule_holds_if_all_of_it_holds() {
        let policy = policy(
            r#"
            [[allow]]
            one = { uid = [33], cgroup = "/system.slice/web.service" }
            other = { gid = [50] }
            ports = [6379, "8000-8999"]
            addresses = ["127.0.0.0/8", "::1"]
            [[deny]]
            one = { uid = [33] }
            other = {}
            ports = [8080]
            "#,
        );
        let web = subject(33, 33, "/system.slice/web.service/worker");
        let cache = subject(7, 50, "");
        assert!(permits_at(&policy, &web, &cache, LOCAL));
        assert!(permits_at(&policy, &web, &cache, ["[::1]:8999", "[::1]:1"]));
        assert!(!permits_at(&policy, &web, &cache, ["127.0.0.1:1", "127.0.0.1:2"]));
        assert!(!permits_at(&policy, &web, &cache, ["127.0.0.1:6379", "10.0.0.1:2"]));
        assert!(!permits_at(&policy, &web, &cache, ["127.0.0.1:8080", "127.0.0.1:6379"]));
        assert!(!permits_at(&policy, &subject(33, 33, "/system.slice/web.service2"), &cache, LOCAL));
        assert!(!permits_at(&policy, &subject(33, 33, ""), &cache, LOCAL));
        assert!(!permits_at(&policy, &web, &subject(7, 51, ""), LOCAL));
    }

    /// What one user's identity alone leaves open is no refusal, and every program of the user
    /// that may share makes it possible.
    #[test]
    fn a_user_may_share_if_one_of_his_programs_may() {
        let allow = "[[allow]]\none = { uid = [26] }\nother = { uid = [33]";
        let deny = "[[deny]]\none = { uid = [26] }\nother = { uid = [33]";
        let policies = [
            (String::new(), STRANGERS),
            ("same_user = true\n".to_owned(), STRANGERS),
            (format!("{allow} }}\n"), SHARED),
            (format!("{allow} }}\nports = [6379]\n"), SHARED),
            (format!("{allow} }}\nports = [80]\n"), STRANGERS),
            (format!("{allow} }}\naddresses = [\"10.0.0.0/8\"]\n"), STRANGERS),
            (format!("{allow}, gid = [50] }}\n"), SHARED),
            (format!("{allow}, cgroup = \"/a\" }}\n"), SHARED),
            ("[[allow]]\none = { gid = [7] }\nother = {}\n".to_owned(), SHARED),
            ("[[allow]]\none = {}\nother = { uid = [34] }\n".to_owned(), STRANGERS),
            (format!("{allow} }}\n{deny} }}\n"), FORBIDDEN),
            (format!("{allow} }}\n{deny}, gid = [50] }}\n"), SHARED),
            (format!("{allow} }}\n{deny} }}\nports = [80]\n"), SHARED),
        ];
        for (text, expected) in policies {
            let policy = policy(&text);
            let addresses = LOCAL.map(|address| address.parse().unwrap());
            let own = subject(26, 26, "");
            assert_eq!(may_permit(&policy, &own, 33, addresses), expected, "{text}");
            let others =
                [33, 50, 7].into_iter().flat_map(|gid| ["", "/a"].map(|group| subject(33, gid, group)));
            let one_does = others.into_iter().any(|other| permits_at(&policy, &own, &other, LOCAL));
            assert_eq!(one_does, expected.is_ok(), "{text}");
        }
    }

    #[test]
    fn mapped_addresses_are_those_of_ipv4() {
        let policy = policy(
            "[[allow]]\none = {}\nother = {}\naddresses = [\"::ffff:127.0.0.0/104\", \"::ffff:10.0.0.1\"]\n",
        );
        let (a, b) = (subject(1, 1, ""), subject(2, 2, ""));
        assert!(permits_at(&policy, &a, &b, LOCAL));
        assert!(permits_at(&policy, &a, &b, ["10.0.0.1:1", "10.0.0.1:2"]));
        assert!(!permits_at(&policy, &a, &b, ["10.0.0.1:1", "10.0.0.2:2"]));
        assert!(!permits_at(&policy, &a, &b, ["[::1]:1", "[::1]:2"]));
    }

    #[test]
    fn the_root_of_the_control_groups_holds_all_of_them() {
        let policy = policy("[[allow]]\none = { cgroup = \"/\" }\nother = { cgroup = \"/a/\" }\n");
        let (outer, inner) = (subject(1, 1, "/"), subject(2, 2, "/a/b"));
        assert!(permits_at(&policy, &outer, &inner, LOCAL));
        assert!(permits_at(&policy, &inner, &inner, LOCAL));
        assert!(!permits_at(&policy, &outer, &subject(2, 2, ""), LOCAL));
    }
}
