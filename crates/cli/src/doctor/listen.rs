//! Servers that can have a listen queue for each worker by a switch of their own, and what that costs.

use super::finding::Finding;

const AREA: &str = "listen queues";

/// The finding about a server, by its program's name; `None`: no such server is known.
pub(super) fn finding(program: &str) -> Option<Finding> {
    let (_, server, switch) = SERVERS.iter().find(|(name, ..)| *name == program)?;
    let found = format!("one that {server}'s workers share, unless its configuration has {switch}");
    Some(
        Finding::ok(AREA, "queues", found)
            .instead(
                "with that switch connections are accepted in parallel, and those in the queue of a worker that is \
                 busy or stopped wait for it (p99 of a second where a worker stops for one)",
            )
            .remedy(
                "keep the shared queue; for queues of the workers' own without that wait, experimental: megapipe run \
                 --local-listen",
            ),
    )
}

/// Program, server, switch.
const SERVERS: [(&str, &str, &str); 4] = [
    ("nginx", "nginx", "`listen ... reuseport`"),
    ("haproxy", "HAProxy", "`bind ... shards by-thread`"),
    ("apache2", "Apache", "`ListenCoresBucketsRatio`"),
    ("httpd", "Apache", "`ListenCoresBucketsRatio`"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_known_by_their_programs() {
        let found = finding("haproxy").expect("a known server").found;
        assert!(found.contains("shards by-thread"), "{found}");
        assert_eq!(finding("redis-server"), None);
    }
}
