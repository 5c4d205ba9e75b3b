//! What every engine must do alike, case by case, on real sockets.
//!
//! A test program instantiates all cases for an engine with [`crate::conformance_suite`];
//! each is a test of its own there.
#![allow(missing_docs)] // the name of a case says what it checks

use std::thread;
use std::time::Duration;

use megapipe::{Channel, Config, CreateError, EngineKind, Spin};

use crate::driver::{Driver, Form};
use crate::netns;
use crate::skip::{self, Skipped, Verdict};
use crate::stack;

pub mod accepting;
pub mod batching;
pub mod bounds;
pub mod cancelling;
pub mod closing;
pub mod control;
pub mod datagrams;
mod exempt;
pub mod files;
pub mod lifetime;
pub mod overload;
pub mod partition;
pub mod passing_over;
pub mod polling;
pub mod processes;
pub mod quotas;
pub mod sharing;
pub mod streams;
pub mod timers;
pub mod waking;
pub mod writing;

/// What a case works with: the engine under test, and who it is.
pub struct Fixture {
    engine: EngineKind,
    name: String,
}

impl Fixture {
    /// The engine under test.
    pub fn engine(&self) -> EngineKind {
        self.engine
    }

    /// The case's name as the test runner knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Settings for the engine under test: small tables, and no spinning, so that tests
    /// that run side by side leave each other the CPU.
    pub fn config(&self) -> Config {
        Config {
            engine: Some(self.engine),
            operations_max: 1 << 14,
            handles_max: 1 << 13,
            lwsockets_max: 1 << 12,
            read_buffers: 64,
            write_buffers: 64,
            spin: Spin::Off,
            ..Config::default()
        }
    }

    /// A channel with these settings.
    pub fn driver(&self) -> Driver {
        Driver::new(self.config())
    }

    /// A channel with these settings, changed by `change`.
    pub fn driver_with(&self, change: impl FnOnce(&mut Config)) -> Driver {
        let mut config = self.config();
        change(&mut config);
        Driver::new(config)
    }

    /// Runs `body` once for each form of socket, each time in a channel of its own.
    pub fn for_each_form(&self, mut body: impl FnMut(Driver, Form)) {
        // A stack's sockets are lightweight sockets.
        let forms = if stack::is_on() { &[Form::Lightweight] } else { &Form::ALL[..] };
        for &form in forms {
            body(self.driver(), form);
        }
    }
}

/// One case.
pub struct Case {
    /// Module and function.
    pub name: &'static str,
    /// The case itself: panics if the engine fails it.
    pub run: fn(&mut Fixture) -> Verdict,
}

/// Whose sockets a case is run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The kernel's.
    Kernel,
    /// A stack's, beside the engine, in a network namespace of the case's own.
    Stack,
}

/// How long a case may take over a stack.
const BOUND: Duration = Duration::from_secs(300);

/// Runs a case on an engine; `path` is the test's `module_path!()`, from which its name
/// follows.
pub fn run(engine: EngineKind, over: Over, path: &str, case: &Case) {
    let module = path.split_once("::").map_or("", |(_, module)| module);
    let (_, function) = case.name.split_once("::").unwrap_or(("", case.name));
    let name = format!("{module}::{function}");
    let applies = exempt::reason(engine, over, case.name).map_or(Ok(()), |why| Err(Skipped::because(why)));
    let verdict = applies.and_then(|()| available(engine)).and_then(|()| {
        if over == Over::Stack {
            if !netns::enter(&name, BOUND) {
                return Ok(());
            }
            stack::turn_on();
        }
        let mut fixture = Fixture { engine, name: name.clone() };
        (case.run)(&mut fixture)
    });
    if let Err(skipped) = verdict {
        skip::record(&name, &skipped);
    }
}

/// Whether the engine can be tested here at all.
pub fn available(engine: EngineKind) -> Verdict {
    let config = Config { engine: Some(engine), lwsockets_max: 64, ..Config::default() };
    // On a thread of its own: see `Channel`, on what the kernel does to the thread after the ring has gone.
    let made = thread::spawn(|| Channel::new(config).map(|channel| channel.engine())).join();
    match made.expect("making a channel does not panic") {
        Ok(made) if made == engine => Ok(()),
        Ok(made) => {
            let forced = made.name();
            Err(Skipped::because(format!("MEGAPIPE_ENGINE={forced} rules the {} engine out", engine.name())))
        }
        Err(CreateError::RingUnavailable(cause) | CreateError::LockedMemory(cause)) => {
            Err(Skipped::because(format!("no {} engine here: {cause}", engine.name())))
        }
        Err(error) => panic!("the {} engine does not come up: {error}", engine.name()),
    }
}

/// Calls `$callback!` with every case, by module.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_case {
    ($callback:ident $($extra:tt)*) => {
        $callback! { ($($extra)*)
            streams {
                tcp_v4_carries_bytes_both_ways
                tcp_v6_carries_bytes_both_ways
                unix_stream_carries_bytes_both_ways
                bytes_behind_passed_descriptors_do_not_stay_behind
                connect_reaches_a_listener
                connect_to_nobody_is_refused
                every_kind_of_read_gets_its_bytes
                queued_reads_take_the_bytes_in_their_order
                end_of_stream_ends_the_reading
                a_reset_peer_fails_the_read
                half_close_leaves_the_other_direction
                shutdown_of_reading_ends_the_read
                shutdown_of_both_ends_both
                everything_works_in_one_loop
            }
            datagrams {
                udp_tells_the_senders_address
                udp_v6_tells_the_senders_address
                connected_udp_keeps_boundaries
                an_empty_datagram_is_a_datagram
                a_long_datagram_is_truncated_and_says_so
                a_datagram_that_is_too_long_fails_alone
                unix_datagrams_keep_boundaries
                messages_wait_for_a_full_receiver
                seqpacket_keeps_boundaries
                the_end_of_seqpacket_ends_the_reading
                reads_into_own_memory_keep_boundaries
            }
            files {
                pipes_carry_bytes
                a_full_pipe_waits_for_its_reader
                the_end_of_a_pipe_ends_the_reading
                a_disk_file_reads_to_its_end
                a_disk_file_reads_at_offsets
                a_disk_file_writes
                sockets_only_calls_are_refused
            }
            accepting {
                connections_come_with_their_peers
                one_connection
                so_many_connections
                connections_without_end
                unix_connections
                pending_says_whether_more_wait
                accepts_take_connections_in_their_order
                a_cancelled_accept_lets_the_next_go_on
                a_closed_listener_closes_what_it_took
                a_socket_that_does_not_listen_says_so
                a_listener_cannot_be_read
                wrong_calls_are_refused
                a_cancelled_accept_takes_nothing
                a_closed_listener_takes_nothing
            }
            closing {
                a_draining_close_reads_nothing
                a_close_under_a_flood_ends_in_time
                an_unregister_under_a_flood_takes_nothing_more
                a_half_close_brings_a_refusal_to_a_peer_that_sends
            }
            lifetime {
                a_closed_handle_stays_silent
                stale_handles_are_refused
                close_sends_fin_whatever_is_pending
                close_of_a_blocked_writer_delivers_first
                close_times_out_on_a_peer_that_does_not_read
                close_behind_a_finished_disconnect_frees_the_handle
                a_shutdown_hits_no_successor
                close_of_a_paused_accept_frees_everything
                reset_sends_rst_whatever_is_pending
                unregister_gives_a_silent_file_back
                unregister_drops_no_write
                a_dropped_lwsocket_is_closed
                dropping_the_channel_closes_everything
                dropping_the_channel_closes_what_was_not_handed_out
                twenty_thousand_connections_leave_nothing_behind
            }
            writing {
                writes_go_out_in_order_and_whole
                pipes_and_unix_sockets_take_them_whole_too
                vectored_writes_of_many_parts
                disconnect_comes_after_queued_writes
                a_half_close_comes_after_queued_writes
                writes_fail_once_each_when_the_peer_resets
                a_quiet_write_speaks_only_when_it_fails
                what_the_kernel_has_not_taken_is_counted
                wrong_writes_are_refused
                the_simplest_echo_resets_nobody_who_reads
            }
            cancelling {
                a_pending_read
                a_queued_read
                a_read_that_is_done
                a_queued_read_behind_one_that_is_done
                a_read_stream
                a_connect
                a_queued_write
                a_queued_disconnect
                what_is_over_cannot_be_cancelled
            }
            control {
                addresses_of_both_ends
                socket_options_stick
                sockets_are_made_by_address
                sockets_are_made_within_the_bounds
                typed_options_and_information
                a_user_timeout_ends_a_peer_that_does_not_read
                lwsocket_to_descriptor_and_back
                a_foreign_lwsocket_is_refused
                cookies_come_back
            }
            timers {
                timers_fire_in_order
                a_timer_ends_a_wait
                a_cancelled_timer_says_so_once
                timers_do_not_starve_io
                thousands_of_cancelled_timers
                a_moved_timer_fires_at_its_last_time
            }
            polling {
                what_is_ready_completes_at_once
                what_becomes_ready_ends_a_wait
                every_kind_of_descriptor
                a_disk_file_is_always_ready
                urgent_bytes_are_reported
                nothing_is_reported_twice
                levels_and_edges_are_made_of_it
                polls_of_one_descriptor_are_independent
                a_handles_descriptor_can_be_polled
                the_end_of_a_stream_is_reported_as_asked
                a_cancelled_poll_says_so_once
                a_cancelled_poll_lets_go_of_its_file
                what_cannot_be_polled_is_an_error
                a_number_used_again_is_polled_anew
                hundreds_of_polls_end_with_their_channel
                random_polls_agree_with_poll
            }
            waking {
                a_wake_ends_a_wait
                a_wake_before_the_wait_counts
                no_wake_of_many_threads_is_lost
                wakes_and_io_do_not_starve_each_other
                a_waker_outlives_its_channel
            }
            batching {
                the_threshold_sends_the_batch
                flush_sends_the_batch
                what_is_ready_costs_no_call
                a_turn_is_at_most_one_system_call
                a_latency_bound_gathers_completions
                a_latency_bound_ends_with_its_delay
                a_zero_timeout_returns
            }
            bounds {
                the_table_of_operations
                the_table_of_handles
                the_table_of_lwsockets
                the_write_queue
                room_in_a_write_queue
                a_dry_pool_starves_nobody
                a_hoarded_pool_pauses_and_resumes
                a_blocked_write_leaves_the_pool
                an_idle_starved_reader_holds_up_nobody
                datagrams_and_streams_share_a_dry_pool
                the_write_pool
                descriptors_exhausted
                a_low_soft_limit_of_descriptors_is_raised
                bad_settings_are_refused
            }
            quotas {
                the_bound_is_exact
                an_echo_of_one_buffer_goes_on
                a_written_buffer_counts_until_it_is_dropped
                a_hoarder_holds_up_nobody
                a_full_stream_goes_on_under_load
                a_full_stream_can_be_cancelled
                a_full_stream_can_be_closed
                a_full_stream_can_be_unregistered
                buffers_that_outlive_their_stream_count_for_nothing
                datagrams_have_a_quota_too
                random_quotas_lose_no_byte
            }
            overload {
                a_full_completion_queue_loses_no_write
                a_full_completion_queue_loses_no_write_of_an_old_kernel
                a_refused_batch_loses_nothing
                timers_come_under_load
                a_cancelled_timer_comes_under_load
                wakes_come_under_load
                close_deadlines_are_met_under_load
                dropped_lwsockets_are_closed_under_load
                timers_without_end_starve_no_reads
            }
            processes {
                a_forked_child_is_turned_away
                a_forked_child_drops_its_copy_alone
                the_environment_chooses_the_engine
                an_unknown_engine_is_an_error
                a_seccomp_filter_leads_to_epoll
                a_signal_interrupts_a_wait
            }
            partition {
                masks_steer_by_cpu
                a_changed_mask_steers_at_once
                a_shared_cpu_is_shared
                leavers_and_late_joiners
                a_listener_of_the_callers_lives_on
                the_death_of_a_thread
                the_death_of_a_process
                the_death_of_a_process_that_steers
                a_forked_child_leaves_the_steering_alone
                without_bpf_the_cpu_alone_decides
            }
            passing_over {
                a_channel_that_cannot_accept_is_passed_over
                a_channel_that_hangs_is_passed_over
                a_channel_that_ends_loses_no_connection_that_waits
            }
            sharing {
                a_channel_that_ends_takes_nothing_from_another
                a_closed_handle_takes_nothing_from_another
                an_unregistered_handle_takes_nothing_from_another
                a_cancelled_accept_takes_nothing_from_another
                a_unix_listener_is_left_to_another
                a_socket_that_listens_late_is_left_to_another
                a_listener_of_the_callers_is_left_to_another
                many_listeners_are_left_to_another
            }
        }
    };
}

macro_rules! list {
    (() $($module:ident { $($case:ident)* })*) => {
        /// Every case.
        pub fn all() -> Vec<Case> {
            vec![$($(Case {
                name: concat!(stringify!($module), "::", stringify!($case)),
                run: $module::$case,
            }),*),*]
        }
    };
}
for_each_case!(list);

#[doc(hidden)]
#[macro_export]
macro_rules! one_test_per_case {
    (($engine:expr, $over:ident) $($module:ident { $($case:ident)* })*) => {
        $(mod $module {
            $(#[test]
            fn $case() {
                let case = $crate::conformance::Case {
                    name: concat!(stringify!($module), "::", stringify!($case)),
                    run: $crate::conformance::$module::$case,
                };
                let over = $crate::conformance::Over::$over;
                $crate::conformance::run($engine, over, module_path!(), &case);
            })*
        })*
    };
}

/// Makes one `#[test]` per engine of each function of the calling module.
#[macro_export]
macro_rules! one_test_per_engine {
    ($($case:ident)*) => {
        $crate::one_test_per_engine!(@ uring Uring $($case)*);
        $crate::one_test_per_engine!(@ epoll Epoll $($case)*);
    };
    (@ $module:ident $engine:ident $($case:ident)*) => {
        mod $module {
            $(#[test]
            fn $case() {
                let case = $crate::conformance::Case { name: stringify!($case), run: super::$case };
                let over = $crate::conformance::Over::Kernel;
                $crate::conformance::run(::megapipe::EngineKind::$engine, over, module_path!(), &case);
            })*
        }
    };
}

/// Makes one `#[test]` of every case, in modules as the suite has them, for one engine
/// (`Uring` or `Epoll`), with the sockets of the `Kernel` or of a `Stack`.
#[macro_export]
macro_rules! conformance_suite {
    ($engine:ident, $over:ident) => {
        use $crate::{for_each_case, one_test_per_case};
        for_each_case!(one_test_per_case::megapipe::EngineKind::$engine, $over);
    };
}
