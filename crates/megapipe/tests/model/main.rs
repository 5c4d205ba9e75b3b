//! Random sequences of operations against a model that knows which bytes must arrive:
//! nothing is lost, doubled or out of order, every operation ends once, and nothing is
//! left behind.
//!
//! `MEGAPIPE_SOAK=N` runs N sequences per engine instead of a few; `MEGAPIPE_SEED=N`
//! repeats a run.

use std::time::Duration;

use proptest::test_runner::{Config as RunnerConfig, RngSeed, TestRunner};
use testkit::conformance::Fixture;
use testkit::one_test_per_engine;
use testkit::skip::Verdict;

use self::model::Model;
use self::steps::steps;

mod connection;
mod model;
mod steps;

one_test_per_engine! { random_sequences_agree_with_the_model }

/// How long a sequence may take to come to its end; shrinking repeats it many times.
const PATIENCE: Duration = Duration::from_secs(60);
const CONNECTIONS: usize = 4;
const HANDLES_MAX: u32 = 10;
const OPERATIONS_MAX: u32 = 48;
const READ_BUFFERS: u16 = 4;
const BUFFER_SIZE: u32 = 256;
const WRITE_QUEUE_MAX: u32 = 8;

fn random_sequences_agree_with_the_model(fixture: &mut Fixture) -> Verdict {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let soak = number("MEGAPIPE_SOAK");
    let seed = number("MEGAPIPE_SEED")
        .unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64));
    println!("seed {seed}: repeat with MEGAPIPE_SEED={seed}");
    let mut runner = TestRunner::new(RunnerConfig {
        cases: soak.unwrap_or(150) as u32,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        max_shrink_iters: 4000,
        ..RunnerConfig::default()
    });
    let outcome = runner.run(&steps(), |steps| {
        let mut model = Model::new(fixture);
        for step in &steps {
            model.step(step);
        }
        model.finish();
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("MEGAPIPE_SEED={seed}: {failure}");
    }
    Ok(())
}
