//! The servers that can be compared, by name.

use crate::names::names;

names! {
    /// A server implementation of the RPC benchmark.
    Engine {
        /// Megapipe's channel on io_uring, one per thread.
        MegapipeUring = "megapipe-uring",
        /// Megapipe's channel on epoll, one per thread.
        MegapipeEpoll = "megapipe-epoll",
        /// The channel on io_uring with a partitioned listener, steered to by the CPU of the SYN.
        MegapipePartitioned = "megapipe-partitioned",
        /// epoll, one listening socket shared by all threads.
        EpollShared = "epoll-shared",
        /// epoll, one SO_REUSEPORT listening socket per thread.
        EpollReuseport = "epoll-reuseport",
        /// io_uring used directly, one ring and one SO_REUSEPORT listening socket per thread.
        UringPlain = "uring-plain",
        /// tokio, one single-threaded runtime per CPU.
        Tokio = "tokio",
        /// monoio on io_uring, one runtime per CPU.
        Monoio = "monoio",
        /// libevent, one event base per thread.
        Libevent = "libevent",
        /// libuv, one loop per thread.
        Libuv = "libuv",
    }
}

impl Engine {
    /// All that this program was built with, but for libraries that it lacks.
    pub fn built() -> Vec<Engine> {
        Self::ALL.iter().copied().filter(|engine| cfg!(feature = "peers") || !engine.is_peer()).collect()
    }

    /// Whether it takes the feature `peers`.
    pub fn is_peer(self) -> bool {
        matches!(self, Engine::Tokio | Engine::Monoio | Engine::Libevent | Engine::Libuv)
    }

    /// The engines whose better one every other is compared with.
    pub const BASELINES: &[Engine] = &[Engine::EpollShared, Engine::EpollReuseport];

    /// Whether all threads get one listening socket, rather than each its own.
    pub fn shares_listener(self) -> bool {
        matches!(self, Engine::EpollShared | Engine::MegapipePartitioned)
    }
}
