//! Every state that can be reached, each once.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use crate::world::{Act, Bounds, Event, Mutation, World};

/// Names states: 64 bits, so that among ten million two are confused once in a hundred
/// thousand searches, and one of them is not checked then.
#[derive(Clone, Copy, Default)]
pub(crate) struct Digest(u64);

impl Hasher for Digest {
    fn write_u64(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value ^ 0x9e37_79b9_7f4a_7c15) * 0xa076_1d64_78bd_642f;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A name is as good as its hash.
#[derive(Default)]
struct Same(u64);

impl Hasher for Same {
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("names are numbers");
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The result of a search.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) states: usize,
    pub(crate) steps: u64,
    /// States in which nothing goes on by itself.
    pub(crate) quiet: usize,
    /// Steps of the longest path.
    pub(crate) longest: usize,
    pub(crate) events: BTreeMap<Event, u64>,
}

/// What must not happen, and the steps that led to it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) what: String,
    pub(crate) way: Vec<(usize, Act)>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}, after", self.what)?;
        self.way.iter().try_for_each(|(side, act)| write!(formatter, " {side}:{act:?}"))
    }
}

struct Search {
    seen: HashSet<u64, BuildHasherDefault<Same>>,
    found: Found,
    way: Vec<(usize, Act)>,
}

/// Checks every state within the bounds.
pub(crate) fn search(bounds: &'static Bounds, mutation: Mutation) -> Result<Found, Failure> {
    // A path is a few hundred calls deep.
    let thread = std::thread::Builder::new().stack_size(256 << 20).spawn(move || {
        let world = World::new(bounds, mutation);
        let mut search = Search { seen: HashSet::default(), found: Found::default(), way: Vec::new() };
        search.seen.insert(world.name());
        let result = search.visit(&world);
        search.found.states = search.seen.len();
        let Search { found, way, .. } = search;
        result.map(|()| found).map_err(|what| Failure { what, way })
    });
    thread.unwrap().join().unwrap()
}

impl Search {
    fn visit(&mut self, world: &World) -> Result<(), String> {
        self.found.longest = self.found.longest.max(self.way.len());
        let name = world.name();
        let mut changing = Vec::new();
        for (side, act) in world.acts() {
            world.put_back();
            let mut next = world.clone();
            self.way.push((side, act));
            next.step(side, act)?;
            self.found.steps += 1;
            next.events(|event| *self.found.events.entry(event).or_default() += 1);
            let next_name = next.name();
            if next_name != name {
                changing.push(act);
            }
            if self.seen.insert(next_name) {
                self.visit(&next)?;
            }
            self.way.pop();
        }
        if world.is_quiet(changing.into_iter()) {
            self.found.quiet += 1;
            world.check_quiet()?;
        }
        Ok(())
    }
}
