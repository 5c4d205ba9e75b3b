//! The negative control: scripts that have to fail.

use crate::parse::{At, Script, What};
use crate::segment::{Marks, Segment, TcpOption};

/// The script with one expected packet altered, in each way that there is for each packet: another
/// sequence number, acknowledgement, length, flag or option, or no such packet. With what was
/// done to which line. Each has to fail where the script passes.
pub fn alterations(script: &Script) -> Vec<(String, Script)> {
    let mut all = Vec::new();
    for (at, event) in script.events.iter().enumerate() {
        let What::Expect(expected) = &event.what else { continue };
        all.extend(
            without(script, at).map(|absent| (format!("{}:{}: absent", script.file, event.line), absent)),
        );
        for (name, segment) in variants(expected) {
            let mut altered = script.clone();
            altered.events[at].what = What::Expect(segment);
            all.push((format!("{}:{}: {name}", script.file, event.line), altered));
        }
    }
    all
}

/// The script without an event; what follows happens at the same times as before. `None` if the
/// event's time is open.
fn without(script: &Script, at: usize) -> Option<Script> {
    let mut script = script.clone();
    let removed = script.events.remove(at).at;
    script.compared -= 1;
    if let Some(next) = script.events.get_mut(at)
        && let At::After(wait) = next.at
    {
        next.at = match removed {
            At::Absolute(time) => At::Absolute(time + wait),
            At::After(time) => At::After(time + wait),
            At::Any | At::Within(..) => return None,
        };
    }
    Some(script)
}

fn variants(segment: &Segment) -> Vec<(&'static str, Segment)> {
    let mut variants = vec![("length", Segment { len: segment.len + 1, ..segment.clone() })];
    // The number of a SYN is where counting begins.
    if !segment.flags.contains('S') {
        variants.push(("sequence", Segment { seq: segment.seq.wrapping_add(1), ..segment.clone() }));
    }
    if let Some(ack) = segment.ack {
        variants.push(("ack", Segment { ack: Some(ack.wrapping_add(1)), ..segment.clone() }));
    }
    let flags = match segment.flags.strip_prefix('F') {
        Some(rest) => rest.to_string(),
        None => format!("F{}", segment.flags),
    };
    variants.push(("flag", Segment { flags, ..segment.clone() }));
    if let Some(window) = segment.window {
        variants.push(("window", Segment { window: Some(window ^ 1), ..segment.clone() }));
    }
    if let Some(hops) = segment.marks.hops {
        let marks = Marks { hops: Some(hops ^ 1), ..segment.marks };
        variants.push(("hops", Segment { marks, ..segment.clone() }));
    }
    if let Some(ecn) = segment.marks.ecn {
        let marks = Marks { ecn: Some(ecn ^ 1), ..segment.marks };
        variants.push(("codepoint", Segment { marks, ..segment.clone() }));
    }
    if let Some(options) = &segment.options {
        let mut options = options.clone();
        options.push(TcpOption::Sack(vec![(1, 2)]));
        variants.push(("option", Segment { options: Some(options), ..segment.clone() }));
    }
    variants
}
