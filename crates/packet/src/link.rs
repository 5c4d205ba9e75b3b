//! Two devices joined in memory.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use crate::{Batch, Capabilities, Device, Frame, Offload};

/// A packet in flight.
#[derive(Clone, Debug)]
pub struct Packet {
    /// From the IP header on.
    pub bytes: Vec<u8>,
    /// What is left to do to it.
    pub offload: Offload,
}

impl Packet {
    /// A packet in which nothing is left to do.
    pub fn complete(bytes: Vec<u8>) -> Packet {
        Packet { bytes, offload: Offload::default() }
    }

    /// A view of it.
    pub fn frame(&self) -> Frame<'_> {
        Frame { bytes: &self.bytes, offload: self.offload }
    }
}

impl From<Frame<'_>> for Packet {
    fn from(frame: Frame<'_>) -> Packet {
        Packet { bytes: frame.bytes.to_vec(), offload: frame.offload }
    }
}

type Queue = Rc<RefCell<VecDeque<Packet>>>;

/// One endpoint of a memory link.
pub struct Link {
    capabilities: Capabilities,
    limit: usize,
    sent: Queue,
    received: Queue,
}

/// Two devices: what one sends, the other receives at once and in order.
///
/// A direction holds at most `limit` packets; further ones are dropped, as by a full queue of a
/// router.
pub fn pair(capabilities: Capabilities, limit: usize) -> (Link, Link) {
    let (there, back) = (Queue::default(), Queue::default());
    let left = Link { capabilities, limit, sent: there.clone(), received: back.clone() };
    let right = Link { capabilities, limit, sent: back, received: there };
    (left, right)
}

impl Device for Link {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn receive(&mut self, batch: &mut Batch) -> io::Result<usize> {
        let mut queue = self.received.borrow_mut();
        let mut count = 0;
        while let Some(packet) = queue.front() {
            if batch.push(packet.frame()).is_err() {
                break;
            }
            queue.pop_front();
            count += 1;
        }
        Ok(count)
    }

    fn send(&mut self, batch: &mut Batch) -> io::Result<usize> {
        let mut queue = self.sent.borrow_mut();
        let mut count = 0;
        while let Some(frame) = batch.first() {
            if queue.len() < self.limit {
                queue.push_back(frame.into());
            }
            batch.remove_first();
            count += 1;
        }
        Ok(count)
    }
}
