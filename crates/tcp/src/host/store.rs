//! Bytes by sequence number, in pages of a common pool.

use crate::core::seq::{Seq, Span};

/// Bytes of a page.
pub(crate) const PAGE: u32 = 4096;

const NIL: u32 = u32::MAX;

/// Pages that streams borrow. Nothing is allocated after it is made.
pub(crate) struct Pages {
    memory: Box<[u8]>,
    nodes: Vec<Node>,
    free: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Node {
    /// Position of the page's first byte.
    start: Seq,
    next: u32,
}

/// The bytes of one direction: a list of pages in order, with gaps where nothing was written.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    first: u32,
    last: u32,
    /// Where the last search ended: the next one usually goes on from there.
    cursor: u32,
    /// The end of what was written.
    end: Seq,
}

impl Default for Stream {
    fn default() -> Stream {
        Stream { first: NIL, last: NIL, cursor: NIL, end: Seq(0) }
    }
}

impl Pages {
    pub(crate) fn new(count: usize) -> Pages {
        Pages {
            memory: vec![0; count * PAGE as usize].into_boxed_slice(),
            nodes: vec![Node { start: Seq(0), next: NIL }; count],
            free: (0..count as u32).rev().collect(),
        }
    }

    /// Bytes for which there are free pages.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        (self.free.len() as u32).saturating_mul(PAGE)
    }

    /// Pages, free or not.
    pub(crate) fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Whether all bytes of a span could be written, and so many pages be left.
    #[inline]
    pub(crate) fn has_room(&self, stream: &Stream, span: Span, spare: usize) -> bool {
        let pages = (page_of(span.end + (PAGE - 1)) - page_of(span.start)) / PAGE;
        if pages as usize + spare <= self.free.len() {
            return true;
        }
        let mut missing = pages as usize;
        let mut at = stream.first;
        while at != NIL {
            let start = self.nodes[at as usize].start;
            if start.before(span.end) && (start + PAGE).after(span.start) {
                missing -= 1;
            }
            at = self.nodes[at as usize].next;
        }
        missing == 0 || missing + spare <= self.free.len()
    }

    /// Writes bytes at a position, over what is there. Returns how many it had pages for.
    #[inline]
    pub(crate) fn write(&mut self, stream: &mut Stream, at: Seq, bytes: &[u8]) -> usize {
        if stream.first == NIL {
            stream.end = at;
        }
        let (mut position, mut rest) = (at, bytes);
        while !rest.is_empty()
            && let Some(page) = self.page_for(stream, page_of(position))
        {
            let place = place_in(page, position);
            let (piece, behind) = rest.split_at(rest.len().min(place.len()));
            self.memory[place.start..place.start + piece.len()].copy_from_slice(piece);
            (position, rest) = (position + piece.len() as u32, behind);
        }
        stream.end = stream.end.max(position);
        position.past(at) as usize
    }

    /// Reads bytes that were written.
    #[inline]
    pub(crate) fn read(&self, stream: &mut Stream, at: Seq, out: &mut [u8]) {
        let (mut position, mut rest) = (at, out);
        while !rest.is_empty() {
            let page = self.search(stream, page_of(position));
            let place = place_in(page, position);
            let len = rest.len().min(place.len());
            let (piece, behind) = rest.split_at_mut(len);
            if page != NIL && self.nodes[page as usize].start == page_of(position) {
                stream.cursor = page;
                piece.copy_from_slice(&self.memory[place.start..place.start + len]);
            } else {
                debug_assert!(false, "{position:?} was never written");
            }
            (position, rest) = (position + len as u32, behind);
        }
    }

    /// Drops all bytes before a position.
    #[inline]
    pub(crate) fn release(&mut self, stream: &mut Stream, upto: Seq) {
        if stream.first == NIL {
            return;
        }
        if stream.end.upto(upto) {
            return self.clear(stream);
        }
        while stream.first != NIL && (self.nodes[stream.first as usize].start + PAGE).upto(upto) {
            let gone = stream.first;
            stream.first = self.nodes[gone as usize].next;
            if stream.cursor == gone {
                stream.cursor = NIL;
            }
            self.free.push(gone);
        }
        if stream.first == NIL {
            *stream = Stream::default();
        }
    }

    /// Drops all bytes from a position on.
    pub(crate) fn truncate(&mut self, stream: &mut Stream, from: Seq) {
        let mut kept = NIL;
        let mut at = stream.first;
        while at != NIL && self.nodes[at as usize].start.before(from) {
            kept = at;
            at = self.nodes[at as usize].next;
        }
        self.free_list(at);
        if kept == NIL {
            *stream = Stream::default();
        } else {
            self.nodes[kept as usize].next = NIL;
            stream.last = kept;
            stream.cursor = NIL;
            stream.end = stream.end.min(from);
        }
    }

    /// First bytes of the stream's pages.
    pub(crate) fn starts(&self, stream: &Stream) -> impl Iterator<Item = Seq> {
        let node = |at: u32| (at != NIL).then(|| &self.nodes[at as usize]);
        std::iter::successors(node(stream.first), move |last| node(last.next)).map(|node| node.start)
    }

    /// Drops everything.
    #[inline]
    pub(crate) fn clear(&mut self, stream: &mut Stream) {
        self.free_list(stream.first);
        *stream = Stream::default();
    }

    #[inline]
    fn free_list(&mut self, mut at: u32) {
        while at != NIL {
            self.free.push(at);
            at = self.nodes[at as usize].next;
        }
    }

    /// The last page of the stream that does not begin after `start`.
    #[inline]
    fn search(&self, stream: &Stream, start: Seq) -> u32 {
        if self.begins_before(stream.last, start) { stream.last } else { self.walk(stream, start) }
    }

    fn walk(&self, stream: &Stream, start: Seq) -> u32 {
        let candidates = [stream.cursor, stream.first];
        let Some(mut at) = candidates.into_iter().find(|&page| self.begins_before(page, start)) else {
            return NIL;
        };
        while self.begins_before(self.nodes[at as usize].next, start) {
            at = self.nodes[at as usize].next;
        }
        at
    }

    #[inline]
    fn begins_before(&self, page: u32, start: Seq) -> bool {
        page != NIL && self.nodes[page as usize].start.upto(start)
    }

    /// The page that begins at `start`, borrowed if need be.
    #[inline]
    fn page_for(&mut self, stream: &mut Stream, start: Seq) -> Option<u32> {
        let before = self.search(stream, start);
        if before != NIL && self.nodes[before as usize].start == start {
            stream.cursor = before;
            return Some(before);
        }
        let page = self.free.pop()?;
        let next = if before == NIL { stream.first } else { self.nodes[before as usize].next };
        self.nodes[page as usize] = Node { start, next };
        if before == NIL {
            stream.first = page;
        } else {
            self.nodes[before as usize].next = page;
        }
        if next == NIL {
            stream.last = page;
        }
        stream.cursor = page;
        Some(page)
    }
}

/// First bytes of the pages that a span lies in.
pub(crate) fn pages_of(span: Span) -> impl Iterator<Item = Seq> {
    let first = page_of(span.start);
    let count = if span.is_empty() { 0 } else { (page_of(span.end - 1) - first) / PAGE + 1 };
    (0..count).map(move |page| first + page * PAGE)
}

/// The place of a position in the memory of all pages, up to the end of its page.
fn place_in(page: u32, position: Seq) -> std::ops::Range<usize> {
    let start = page as usize * PAGE as usize;
    start + (position.0 % PAGE) as usize..start + PAGE as usize
}

fn page_of(position: Seq) -> Seq {
    Seq(position.0 & !(PAGE - 1))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// A stream holds what was written, wherever it begins, and returns every page.
        #[test]
        fn holds_what_was_written(
            origin: u32,
            steps in prop::collection::vec((0u32..60_000, 1usize..9_000, any::<u8>(), 0u8..8), 1..40),
        ) {
            let mut pages = Pages::new(24);
            let mut stream = Stream::default();
            let mut model = BTreeMap::new();
            let mut released = 0u32;
            for (at, len, byte, what) in steps {
                let at = at.max(released);
                match what {
                    0 => {
                        pages.release(&mut stream, Seq(origin) + at);
                        released = at;
                        model.retain(|&place, _| place >= at);
                    }
                    1 => {
                        pages.truncate(&mut stream, Seq(origin) + at);
                        model.retain(|&place, _| place < at);
                    }
                    _ => {
                        let bytes = vec![byte; len];
                        let span = Span::new(Seq(origin) + at, Seq(origin) + at + len as u32);
                        let fits = pages.has_room(&stream, span, 0);
                        let done = pages.write(&mut stream, span.start, &bytes);
                        prop_assert_eq!(fits, done == len);
                        model.extend((at..at + done as u32).map(|place| (place, byte)));
                    }
                }
                // Every 13th byte: the pages' boundaries come at all phases.
                for (&place, &byte) in model.iter().step_by(13) {
                    let mut read = [0];
                    pages.read(&mut stream, Seq(origin) + place, &mut read);
                    prop_assert_eq!(read[0], byte);
                }
            }
            pages.clear(&mut stream);
            prop_assert_eq!(pages.room(), 24 * PAGE);
        }
    }
}
