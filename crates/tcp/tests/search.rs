//! Paths on which long segments vanish without an error (RFC 4821), and those that only did nothing for a while.
//! Under virtual time.
mod common;

use std::time::Duration;

use common::trace::ms;
use common::{Net, OFFLOADS, PLAIN, config};
use packet::{Capabilities, Faults};
use tcp::Flow;

const RTT: Duration = Duration::from_millis(20);

/// A bulk transfer, of which one side always has more to send.
struct Bulk {
    net: Net,
    client: Flow,
    server: Flow,
    read: usize,
}

impl Bulk {
    fn new(capabilities: Capabilities, v6: bool) -> Bulk {
        let mut net = Net::new([config(0, capabilities), config(1, capabilities)], 1);
        let (client, server) = net.connect(v6);
        let mut bulk = Bulk { net, client, server, read: 0 };
        bulk.faults(Faults::default());
        bulk
    }

    fn faults(&mut self, there: Faults) {
        let faults = Faults { delay: RTT / 2, rate: 12_500_000, queue: 250_000, ..there };
        self.net.set_faults(0, faults);
        self.net.set_faults(1, Faults { longest: 0, loss: 0.0, ..faults });
    }

    fn run(&mut self, time: Duration) {
        let until = self.net.now.after(time);
        let piece = vec![0; 1 << 20];
        while self.net.now < until {
            let now = self.net.now;
            self.net.host(0).write(now, self.client, &piece).expect("open");
            self.net.exchange();
            self.net.now = self.net.next().expect("something will happen").max(now).min(until);
            self.net.exchange();
            self.read += self.net.read_all(1, self.server).0.len();
        }
    }

    fn mss(&mut self) -> u16 {
        self.net.host(0).info(self.client).expect("open").mss
    }

    fn bytes_again(&mut self) -> u64 {
        self.net.host(0).info(self.client).expect("open").bytes_again
    }
}

/// After a silence of 2.5 to 6 s, in which three timeouts or more looked like a black hole, segments are as long
/// as before a second after the first one that arrives.
#[test]
fn segments_grow_again_after_an_outage() {
    for (capabilities, v6) in [(PLAIN, false), (OFFLOADS, true)] {
        for outage in [2_500, 4_000, 6_000] {
            let mut bulk = Bulk::new(capabilities, v6);
            bulk.run(ms(500));
            let before = bulk.mss();
            bulk.faults(Faults { loss: 1.0, ..Faults::default() });
            bulk.run(ms(outage));
            let during = bulk.mss();
            bulk.faults(Faults::default());
            // The next timeout is as long away as the silence was.
            bulk.run(ms(outage + 1_500));
            let line = format!("{outage} ms: {before}, {during}, {}", bulk.mss());
            println!("{line}");
            assert!(during < before, "{line}");
            assert_eq!(bulk.mss(), before, "{line}");
        }
    }
}

/// A path that takes less, and does not say so: the largest segment that passes is found but for 32 bytes, what is
/// sent again for it is a few segments in ten minutes, and the window is not reduced for them.
#[test]
fn segments_grow_to_what_a_path_takes() {
    for longest in [1_100, 1_400, 1_492] {
        let mut bulk = Bulk::new(PLAIN, false);
        bulk.run(ms(500));
        bulk.faults(Faults { longest, ..Faults::default() });
        bulk.run(ms(5_000));
        let (found, takes) = (bulk.mss(), longest as u16 - 40);
        let (again, read) = (bulk.bytes_again(), bulk.read);
        bulk.run(ms(3_000));
        let goodput = (bulk.read - read) as f64 / 3.0 / 12_500_000.0;
        let line = format!("{longest}: {found} of {takes}, goodput {goodput:.3}");
        println!("{line}");
        assert!((takes - 32..=takes).contains(&found), "{line}");
        assert_eq!(bulk.mss(), found, "{line}");
        // Losses of a full queue alone; each search costs five segments at most.
        assert!(bulk.bytes_again() - again < 100_000, "{line}");
        assert!(goodput > 0.85, "{line}");
    }
}

/// After ten minutes the search begins anew, and finds that the path takes all again.
#[test]
fn a_search_is_repeated_after_ten_minutes() {
    let mut bulk = Bulk::new(PLAIN, false);
    bulk.faults(Faults { longest: 1_300, rate: 0, ..Faults::default() });
    bulk.run(ms(5_000));
    let found = bulk.mss();
    assert!((1_228..=1_260).contains(&found), "{found}");
    bulk.faults(Faults::default());
    bulk.net.run(Duration::from_secs(500));
    bulk.run(ms(500));
    assert_eq!(bulk.mss(), found);
    bulk.net.run(Duration::from_secs(100));
    bulk.run(ms(1_000));
    assert_eq!(bulk.mss(), 1_460);
}
