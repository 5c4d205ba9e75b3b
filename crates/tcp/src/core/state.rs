//! The connection states of RFC 9293, 3.3.2, and all transitions between them.

/// State of a flow. LISTEN and a passive SYN-RECEIVED have records of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// SYN sent, nothing received.
    SynSent,
    /// SYN sent and received (simultaneous open), not acknowledged.
    SynReceived,
    /// Open in both directions.
    Established,
    /// We have closed, the peer has not acknowledged it.
    FinWait1,
    /// We have closed, the peer has acknowledged it.
    FinWait2,
    /// Both have closed, the peer has not acknowledged ours.
    Closing,
    /// Both have closed, all is acknowledged; late segments may arrive.
    TimeWait,
    /// The peer has closed.
    CloseWait,
    /// The peer, then we have closed; it has not acknowledged ours.
    LastAck,
    /// Over.
    Closed,
}

/// What moves a connection to another state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The peer's SYN arrived without an acknowledgement of ours.
    SynReceived,
    /// Our SYN is acknowledged, and the peer's was received.
    SynAcknowledged,
    /// The program has no more to send.
    Close,
    /// Our FIN is acknowledged.
    FinAcknowledged,
    /// The peer's FIN arrived, with all before it.
    FinReceived,
    /// Reset, given up, or waited long enough.
    End,
}

impl State {
    /// Where a step leads (figure 5 of RFC 9293). A step that a state does not provide for
    /// changes nothing.
    pub(crate) fn after(self, step: Step) -> State {
        use State::*;
        match (self, step) {
            (_, Step::End) => Closed,
            (SynSent, Step::SynReceived) => SynReceived,
            (SynSent | SynReceived, Step::SynAcknowledged) => Established,
            // Before, the program's close waits for the handshake (RFC 9293, 3.10.4).
            (Established, Step::Close) => FinWait1,
            (CloseWait, Step::Close) => LastAck,
            (FinWait1, Step::FinAcknowledged) => FinWait2,
            (Closing, Step::FinAcknowledged) => TimeWait,
            (LastAck, Step::FinAcknowledged) => Closed,
            (Established, Step::FinReceived) => CloseWait,
            (FinWait1, Step::FinReceived) => Closing,
            (FinWait2, Step::FinReceived) => TimeWait,
            (state, _) => state,
        }
    }

    /// Whether both SYNs have been exchanged and acknowledged.
    pub fn is_synchronized(self) -> bool {
        !matches!(self, State::SynSent | State::SynReceived | State::Closed)
    }

    /// Whether the peer may still send.
    pub fn can_receive(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Whether the program may still send.
    pub fn can_send(self) -> bool {
        matches!(self, State::SynSent | State::SynReceived | State::Established | State::CloseWait)
    }
}

#[cfg(test)]
mod tests {
    use super::State::*;
    use super::*;

    #[test]
    fn the_usual_ways_to_close() {
        let walk = |steps: &[Step]| steps.iter().fold(Established, |state, &step| state.after(step));
        assert_eq!(walk(&[Step::Close, Step::FinAcknowledged, Step::FinReceived]), TimeWait);
        assert_eq!(walk(&[Step::Close, Step::FinReceived, Step::FinAcknowledged]), TimeWait);
        assert_eq!(walk(&[Step::FinReceived, Step::Close, Step::FinAcknowledged]), Closed);
    }
}
