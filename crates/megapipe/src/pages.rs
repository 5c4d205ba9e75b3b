//! The pages on which a channel publishes whether it sleeps: one of each monitor that
//! promoted a live connection.

use std::collections::HashSet;

use promote::OwnLoop;

use crate::id::Handle;

struct Page {
    page: OwnLoop,
    /// Connections whose peers read it.
    users: HashSet<Handle>,
}

/// The pages; the present monitor's is the last.
#[derive(Default)]
pub(crate) struct Pages(Vec<Page>);

impl Pages {
    /// Adds a new monitor's page; promoted connections keep the pages of earlier ones.
    pub(crate) fn add(&mut self, page: OwnLoop) {
        self.0.retain(|page| !page.users.is_empty());
        self.0.push(Page { page, users: HashSet::new() });
    }

    /// The present monitor granted a connection.
    pub(crate) fn add_user(&mut self, handle: Handle) {
        if let Some(page) = self.0.last_mut() {
            page.users.insert(handle);
        }
    }

    /// A connection has ended, or its grant is not used. The page of an earlier monitor
    /// is dropped with its last connection.
    pub(crate) fn remove_user(&mut self, handle: Handle) {
        let Some(place) = self.0.iter_mut().position(|page| page.users.remove(&handle)) else { return };
        if self.0[place].users.is_empty() && place + 1 < self.0.len() {
            self.0.remove(place);
        }
    }

    /// Every connection that has a page.
    pub(crate) fn users(&self) -> impl Iterator<Item = Handle> {
        self.0.iter().flat_map(|page| page.users.iter().copied())
    }

    /// Whether any connection has a page.
    pub(crate) fn are_used(&self) -> bool {
        self.0.iter().any(|page| !page.users.is_empty())
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn sleep(&self) {
        self.0.iter().for_each(|page| page.page.sleep(0));
    }

    pub(crate) fn wake(&self) {
        self.0.iter().for_each(|page| page.page.wake(0));
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use promote::client::LOOP_PAGE;
    use sys::mapping::SharedMapping;
    use sys::memory_file::MemoryFile;

    use super::*;

    fn page() -> OwnLoop {
        let file = MemoryFile::create("test", LOOP_PAGE as u64, b"MPL1\x01\0\0\0").unwrap();
        OwnLoop::new(SharedMapping::writable(file.writable.as_fd(), LOOP_PAGE).unwrap()).unwrap()
    }

    fn handle(index: u32) -> Handle {
        Handle { index, generation: 1 }
    }

    #[test]
    fn a_page_goes_with_its_last_connection() {
        let mut pages = Pages::default();
        pages.add_user(handle(9)); // no monitor was found
        assert!(!pages.are_used());
        pages.add(page());
        pages.add_user(handle(1));
        pages.add_user(handle(2));
        pages.add(page());
        assert_eq!(pages.count(), 2);
        // The second monitor promoted nothing.
        pages.add(page());
        assert_eq!(pages.count(), 2);
        pages.add_user(handle(3));
        pages.remove_user(handle(1));
        pages.remove_user(handle(1));
        pages.remove_user(handle(7));
        assert_eq!(pages.count(), 2);
        assert_eq!(pages.users().collect::<HashSet<_>>(), HashSet::from([handle(2), handle(3)]));
        pages.remove_user(handle(2));
        assert_eq!(pages.count(), 1);
        // The present monitor's page stays.
        pages.remove_user(handle(3));
        assert_eq!(pages.count(), 1);
        assert!(!pages.are_used());
    }
}
