//! Cases that cannot apply to an engine or to a stack, each with the reason.

use megapipe::EngineKind;

use super::Over;

const EXEMPT: &[(EngineKind, &str, &str)] = &[
    (
        EngineKind::Epoll,
        "processes::a_seccomp_filter_leads_to_epoll",
        "epoll is what the choice falls back to",
    ),
    (
        EngineKind::Epoll,
        "overload::a_refused_batch_loses_nothing",
        "epoll makes one call an operation: no batch is refused as a whole",
    ),
];

const NO_DESCRIPTOR: &str = "a stack's sockets are not made of descriptors, and become none";
const LISTENERS_COUNT: &str = "a stack's listeners are lightweight sockets, and count as such";
const PACKETS: &str = "a packet on a TUN device is a call";
const NAGLE: &str =
    "small writes in a row wait for an acknowledgement, which a dispatch takes and a flush does not";

/// Of a stack: modules as a whole, and cases.
const EXEMPT_OVER_STACK: &[(&str, &str)] = &[
    ("datagrams", "a stack has no datagrams"),
    ("files", "pipes and files are the kernel's"),
    ("partition", "a partitioned listener is the kernel's"),
    ("passing_over", "a partitioned listener is the kernel's"),
    ("sharing", "a stack's listener is one channel's"),
    ("batching::the_threshold_sends_the_batch", NAGLE),
    ("batching::a_turn_is_at_most_one_system_call", PACKETS),
    ("batching::flush_sends_the_batch", PACKETS),
    (
        "batching::a_latency_bound_gathers_completions",
        "packets must not wait: a latency bound ends with a stack",
    ),
    (
        "batching::a_latency_bound_ends_with_its_delay",
        "packets must not wait: a latency bound ends with a stack",
    ),
    ("bounds::the_write_pool", NAGLE),
    ("bounds::a_low_soft_limit_of_descriptors_is_raised", NO_DESCRIPTOR),
    ("bounds::descriptors_exhausted", NO_DESCRIPTOR),
    ("bounds::the_table_of_handles", NO_DESCRIPTOR),
    ("closing::an_unregister_under_a_flood_takes_nothing_more", NO_DESCRIPTOR),
    ("control::a_foreign_lwsocket_is_refused", NO_DESCRIPTOR),
    ("control::cookies_come_back", NO_DESCRIPTOR),
    ("control::lwsocket_to_descriptor_and_back", NO_DESCRIPTOR),
    ("control::socket_options_stick", NO_DESCRIPTOR),
    ("lifetime::a_dropped_lwsocket_is_closed", NO_DESCRIPTOR),
    ("lifetime::unregister_gives_a_silent_file_back", NO_DESCRIPTOR),
    ("quotas::a_full_stream_can_be_unregistered", NO_DESCRIPTOR),
    ("polling::a_handles_descriptor_can_be_polled", NO_DESCRIPTOR),
    ("polling::every_kind_of_descriptor", "polled descriptors are the kernel's"),
    ("bounds::the_table_of_lwsockets", LISTENERS_COUNT),
    ("lifetime::close_of_a_paused_accept_frees_everything", LISTENERS_COUNT),
    ("control::sockets_are_made_within_the_bounds", "its addresses are the kernel's"),
    ("control::typed_options_and_information", NO_DESCRIPTOR),
    (
        "writing::the_simplest_echo_resets_nobody_who_reads",
        "the stacks of this suite have small buffers, and its peers write all before they read",
    ),
];

/// Why the case of this name does not apply.
pub(super) fn reason(engine: EngineKind, over: Over, case: &str) -> Option<&'static str> {
    if over == Over::Stack {
        let module = case.split_once("::").map_or(case, |(module, _)| module);
        let exempt = EXEMPT_OVER_STACK.iter().find(|(name, _)| *name == case || *name == module);
        if let Some((_, reason)) = exempt {
            return Some(reason);
        }
    }
    EXEMPT.iter().find(|(exempt, name, _)| *exempt == engine && *name == case).map(|(_, _, reason)| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exempt_case_exists() {
        let cases = crate::conformance::all();
        for name in
            EXEMPT.iter().map(|(_, name, _)| name).chain(EXEMPT_OVER_STACK.iter().map(|(name, _)| name))
        {
            let exists = cases.iter().any(|case| {
                case.name == *name || case.name.split_once("::").is_some_and(|(module, _)| module == *name)
            });
            assert!(exists, "{name}");
        }
    }
}
