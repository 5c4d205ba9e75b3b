//! Quotas: what each user holds, and how fast each client may offer.

use std::collections::HashMap;
use std::time::Instant;

use crate::policy::Limits;

/// What the programs of one user hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Holding {
    clients: u64,
    regions: u64,
    bytes: u64,
    /// Descriptors of waiting offers.
    kept: u64,
}

/// What every user holds. Only users that hold something are kept.
#[derive(Default)]
pub(crate) struct Ledger {
    users: HashMap<u32, Holding>,
}

impl Ledger {
    /// One more client; false if the user has reached its limit.
    pub(crate) fn add_client(&mut self, uid: u32, limits: &Limits) -> bool {
        self.change(uid, |user| {
            let fits = user.clients < limits.clients_per_user;
            user.clients += u64::from(fits);
            fits
        })
    }

    pub(crate) fn remove_client(&mut self, uid: u32) {
        self.change(uid, |user| user.clients = user.clients.saturating_sub(1));
    }

    /// Whether the user may have one more waiting offer whose descriptor is kept.
    pub(crate) fn may_keep(&self, uid: u32, limits: &Limits) -> bool {
        self.users.get(&uid).map_or(0, |user| user.kept) < limits.foreign_waiting_per_user
    }

    /// One more such offer.
    pub(crate) fn add_kept(&mut self, uid: u32) {
        self.change(uid, |user| user.kept += 1);
    }

    pub(crate) fn remove_kept(&mut self, uid: u32) {
        self.change(uid, |user| user.kept = user.kept.saturating_sub(1));
    }

    /// One more region; false if the user has reached its limit.
    pub(crate) fn add_region(&mut self, uid: u32, bytes: u64, limits: &Limits) -> bool {
        self.change(uid, |user| {
            let fits = user.regions < limits.segments_per_user
                && user.bytes.saturating_add(bytes) <= limits.bytes_per_user;
            if fits {
                user.regions += 1;
                user.bytes += bytes;
            }
            fits
        })
    }

    pub(crate) fn remove_region(&mut self, uid: u32, bytes: u64) {
        self.change(uid, |user| {
            user.regions = user.regions.saturating_sub(1);
            user.bytes = user.bytes.saturating_sub(bytes);
        });
    }

    /// Regions of a user, and their bytes.
    pub(crate) fn regions_of(&self, uid: u32) -> (u64, u64) {
        self.users.get(&uid).map_or((0, 0), |user| (user.regions, user.bytes))
    }

    /// Regions of all users, and their bytes.
    pub(crate) fn regions(&self) -> (u64, u64) {
        self.users
            .values()
            .fold((0, 0), |(regions, bytes), user| (regions + user.regions, bytes.saturating_add(user.bytes)))
    }

    fn change<R>(&mut self, uid: u32, change: impl FnOnce(&mut Holding) -> R) -> R {
        let user = self.users.entry(uid).or_default();
        let result = change(user);
        if *user == Holding::default() {
            self.users.remove(&uid);
        }
        result
    }
}

/// A token bucket: fills at a steady rate up to a level, and each event takes one out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    level: f64,
    filled: Instant,
}

impl Bucket {
    /// A full one.
    pub(crate) fn full(burst: u32, now: Instant) -> Bucket {
        Bucket { level: burst.into(), filled: now }
    }

    /// Whether one more may pass now.
    pub(crate) fn take(&mut self, per_second: u32, burst: u32, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.level = (self.level + passed * f64::from(per_second)).min(burst.into());
        self.filled = now;
        let passes = self.level >= 1.0;
        if passes {
            self.level -= 1.0;
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bucket_lets_a_burst_pass_and_then_the_rate() {
        let start = Instant::now();
        let mut bucket = Bucket::full(3, start);
        let passed = |bucket: &mut Bucket, now| (0..10).filter(|_| bucket.take(2, 3, now)).count();
        assert_eq!(passed(&mut bucket, start), 3);
        assert_eq!(passed(&mut bucket, start + Duration::from_millis(500)), 1);
        assert_eq!(passed(&mut bucket, start + Duration::from_secs(60)), 3);
    }

    #[test]
    fn each_user_has_limits_of_his_own() {
        let limits = Limits { segments_per_user: 3, bytes_per_user: 20, ..Limits::default() };
        let mut ledger = Ledger::default();
        assert!(ledger.add_region(1, 10, &limits) && ledger.add_region(1, 10, &limits));
        assert!(!ledger.add_region(1, 10, &limits) && ledger.add_region(2, 10, &limits));
        assert!(ledger.add_region(1, 0, &limits) && !ledger.add_region(1, 0, &limits));
        assert_eq!(ledger.regions(), (4, 30));
        ledger.remove_region(1, 10);
        assert!(ledger.add_region(1, 10, &limits));
        for (uid, bytes) in [(1, 10), (1, 10), (1, 0), (2, 10)] {
            ledger.remove_region(uid, bytes);
        }
        assert!(ledger.users.is_empty());
    }
}
