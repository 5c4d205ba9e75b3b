//! Cases that cannot apply to an engine, each with the reason.

use megapipe::EngineKind;

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

/// Why the case of this name does not apply to the engine.
pub(super) fn reason(engine: EngineKind, case: &str) -> Option<&'static str> {
    EXEMPT.iter().find(|(exempt, name, _)| *exempt == engine && *name == case).map(|(_, _, reason)| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exempt_case_exists() {
        for (_, name, _) in EXEMPT {
            assert!(crate::conformance::all().iter().any(|case| case.name == *name), "{name}");
        }
    }
}
