//! The servers that can be compared, by name.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A server implementation of the RPC benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// Megapipe's channel on io_uring, one per thread.
    MegapipeUring,
    /// Megapipe's channel on epoll, one per thread.
    MegapipeEpoll,
    /// The channel on io_uring with a partitioned listener, steered to by the CPU of the SYN.
    MegapipePartitioned,
    /// epoll, one listening socket shared by all threads.
    EpollShared,
    /// epoll, one SO_REUSEPORT listening socket per thread.
    EpollReuseport,
    /// io_uring used directly, one ring and one SO_REUSEPORT listening socket per thread.
    UringPlain,
    /// tokio, one single-threaded runtime per CPU.
    Tokio,
    /// monoio on io_uring, one runtime per CPU.
    Monoio,
    /// compio on io_uring, one runtime per CPU; no more than a name in records, measured until commit 523a28e.
    Compio,
    /// libevent, one event base per thread.
    Libevent,
    /// libuv, one loop per thread.
    Libuv,
}

impl Engine {
    /// All engines, in the order of tables and plots.
    pub const ALL: &[Engine] = &[
        Engine::MegapipeUring,
        Engine::MegapipeEpoll,
        Engine::MegapipePartitioned,
        Engine::EpollShared,
        Engine::EpollReuseport,
        Engine::UringPlain,
        Engine::Tokio,
        Engine::Monoio,
        Engine::Libevent,
        Engine::Libuv,
    ];

    /// All that this program was built with, but for libraries that it lacks.
    pub fn built() -> impl Iterator<Item = Engine> {
        Self::ALL.iter().copied().filter(|engine| cfg!(feature = "peers") || !engine.is_peer())
    }

    /// Whether it takes the feature `peers`.
    pub fn is_peer(self) -> bool {
        matches!(self, Engine::Tokio | Engine::Monoio | Engine::Libevent | Engine::Libuv)
    }

    /// The engines whose better one every other is compared with.
    pub const BASELINES: &[Engine] = &[Engine::EpollShared, Engine::EpollReuseport];

    /// The name users write and records carry.
    pub fn name(self) -> &'static str {
        match self {
            Engine::MegapipeUring => "megapipe-uring",
            Engine::MegapipeEpoll => "megapipe-epoll",
            Engine::MegapipePartitioned => "megapipe-partitioned",
            Engine::EpollShared => "epoll-shared",
            Engine::EpollReuseport => "epoll-reuseport",
            Engine::UringPlain => "uring-plain",
            Engine::Tokio => "tokio",
            Engine::Monoio => "monoio",
            Engine::Compio => "compio",
            Engine::Libevent => "libevent",
            Engine::Libuv => "libuv",
        }
    }

    /// Whether all threads get one listening socket, rather than each its own.
    pub fn shares_listener(self) -> bool {
        matches!(self, Engine::EpollShared | Engine::MegapipePartitioned)
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_carry_the_names_that_users_write() {
        for &engine in Engine::ALL {
            let json = serde_json::to_string(&engine).unwrap();
            assert_eq!(json, format!("\"{}\"", engine.name()));
        }
    }
}
