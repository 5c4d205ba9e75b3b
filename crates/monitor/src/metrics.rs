//! The monitor's counters.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use promote::Reason;
use promote::wire::view::Refusals;

/// Counters and levels under their names.
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) offers: Counter,
    pub(crate) matches: Counter,
    pub(crate) protocol_errors: Counter,
    pub(crate) levels: Levels,
    refusals: Family<Refusal, Counter>,
    reloads: Family<Reload, Counter>,
}

/// Present levels.
#[derive(Default)]
pub(crate) struct Levels {
    pub(crate) clients: Gauge<u64, AtomicU64>,
    pub(crate) waiting: Gauge<u64, AtomicU64>,
    pub(crate) promoted: Gauge<u64, AtomicU64>,
    pub(crate) bytes: Gauge<u64, AtomicU64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refusal {
    reason: Label,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Label(Reason);

impl EncodeLabelValue for Label {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> std::fmt::Result {
        self.0.word().encode(encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reload {
    outcome: &'static str,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let mut metrics = Metrics {
            registry: Registry::with_prefix("megapipe_monitor"),
            offers: Counter::default(),
            matches: Counter::default(),
            protocol_errors: Counter::default(),
            levels: Levels::default(),
            refusals: Family::default(),
            reloads: Family::default(),
        };
        let registry = &mut metrics.registry;
        let levels = &metrics.levels;
        registry.register("offers", "Offers taken from clients", metrics.offers.clone());
        registry.register(
            "matches",
            "Connections whose two endpoints got their memory",
            metrics.matches.clone(),
        );
        registry.register("refusals", "Offers refused, by reason", metrics.refusals.clone());
        let help = "Clients disconnected because they broke the protocol";
        registry.register("protocol_errors", help, metrics.protocol_errors.clone());
        registry.register("reloads", "Readings of the policy after the first", metrics.reloads.clone());
        registry.register("clients", "Clients connected", levels.clients.clone());
        registry.register(
            "waiting_offers",
            "Offers that wait for the other endpoint's",
            levels.waiting.clone(),
        );
        let help = "Endpoints of live promoted connections; two to a connection";
        registry.register("promoted_ends", help, levels.promoted.clone());
        registry.register("segment_bytes", "Bytes of shared memory of all of them", levels.bytes.clone());
        // A reason that has not occurred is a zero, not an absence.
        for reason in Reason::OF_MONITOR {
            drop(metrics.refusals.get_or_create(&Refusal { reason: Label(reason) }));
        }
        metrics
    }

    pub(crate) fn refused(&self, reason: Reason) {
        self.refusals.get_or_create(&Refusal { reason: Label(reason) }).inc();
    }

    /// Refusals of all reasons, in the order of [`Reason::OF_MONITOR`].
    pub(crate) fn refusals(&self) -> Refusals {
        Reason::OF_MONITOR.map(|reason| self.refusals.get_or_create(&Refusal { reason: Label(reason) }).get())
    }

    pub(crate) fn reloaded(&self, good: bool) {
        self.reloads.get_or_create(&Reload { outcome: if good { "taken" } else { "refused" } }).inc();
    }

    /// All of them in the OpenMetrics text format.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}
