//! Submissions beside calls through the library, each string of them in a process of its own: those that the fuzzer begins
//! with, and random ones.
#![allow(unsafe_code)] // C's calls

#[path = "common/hostile.rs"]
mod hostile;

#[test]
fn submissions_lose_nothing() {
    hostile::prepare();
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/submissions");
    let files =
        std::fs::read_dir(seeds).expect("the fuzzer's seeds").map(|file| file.expect("a file").path());
    let mut ran = 0;
    for file in files {
        ran += run(&std::fs::read(&file).expect("readable"), &file.display());
    }
    let first = std::env::var("MEGAPIPE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    for seed in first..first + 60u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut any = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u8
        };
        let script: Vec<u8> = (0..600).map(|_| any()).collect();
        ran += run(&script, &format_args!("MEGAPIPE_SEED={seed}"));
    }
    if ran == 0 {
        println!("SKIPPED submissions_lose_nothing: io_uring is not permitted here");
    }
}

/// By a worker of the kernel's, or beside one: a read then has bytes of a write whose completion comes behind its own.
#[test]
fn what_is_read_may_complete_before_what_wrote_it() {
    hostile::prepare();
    const SENDS_ONE: [u8; 3] = [0, 1, 0];
    const BATCH_OF_FOUR: [u8; 3] = [8, 0, 3];
    // End 1 writes by a worker, ends 2 and 3 write meanwhile, and end 0 reads.
    let write_by_worker = [[1, 3, 47, 0], [2, 0, 255, 0], [3, 0, 255, 0], [0, 0, 229, 3]];
    // End 0 reads by a worker while end 1 writes, and 2 and 3 do.
    let read_by_worker = [[0, 3, 229, 3], [1, 0, 47, 0], [2, 0, 255, 0], [3, 0, 255, 0]];
    const OF_NO_MORE: [u8; 1] = [1];
    const EMPTIES_OTHERS: [u8; 6] = [4, 2, 255, 4, 3, 255];
    let mut ran = 0;
    for form in 0..hostile::FORMS.len() as u8 {
        for batch in [write_by_worker, read_by_worker] {
            let round =
                [&SENDS_ONE[..], &BATCH_OF_FOUR, batch.as_flattened(), &OF_NO_MORE, &EMPTIES_OTHERS].concat();
            let script = [&[form][..], &round.repeat(1500)].concat();
            ran += run(&script, &format_args!("form {form}"));
        }
    }
    if ran == 0 {
        println!("SKIPPED what_is_read_may_complete_before_what_wrote_it: io_uring is not permitted here");
    }
}

/// In a process of its own: what a submission ends, it ends for the process. Returns how many ran: 0 if there is no ring for it.
fn run(script: &[u8], name: &dyn std::fmt::Display) -> u32 {
    const NO_RING: i32 = 2;
    // SAFETY: the child runs the script and ends.
    let child = unsafe { interpose::calls::fork() };
    if child == 0 {
        let ran = std::panic::catch_unwind(|| hostile::run(script));
        // SAFETY: no destructor is of use.
        unsafe { libc::_exit(ran.map_or(1, |ran| if ran { 0 } else { NO_RING })) };
    }
    let mut status = 0;
    // SAFETY: the status lies there.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && [0, NO_RING].contains(&libc::WEXITSTATUS(status)), "{name}: {status}");
    u32::from(status == 0)
}
