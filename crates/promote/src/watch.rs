//! Read-only views for the monitor, which observes the memory that it granted to others.

#![allow(unsafe_code)] // mapped memory becomes views

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use ring::layout::PAGE;
use ring::{LayoutError, LoopView, RegionView};
use sys::mapping::{MapError, SharedMapping};

use crate::client::LOOP_PAGE;

/// Why memory cannot be viewed.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// It cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// It has another layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// The first page of a region, mapped read-only.
#[derive(Debug)]
pub struct RegionWatch {
    // Dropped before its memory.
    view: RegionView,
    _memory: SharedMapping,
}

impl RegionWatch {
    /// Maps the first page of a region of `size` bytes.
    ///
    /// # Errors
    ///
    /// mmap(2), mostly ENOMEM beyond vm.max_map_count; or it is not sealed memory.
    pub fn new(segment: BorrowedFd<'_>, size: u32) -> Result<RegionWatch, WatchError> {
        let memory = SharedMapping::beginning(segment, size as usize, PAGE)?;
        let start = NonNull::new(memory.address()).ok_or(LayoutError::Alignment)?;
        // SAFETY: a page is mapped there, and stays so beside `view`; no references to it
        // exist.
        let view = unsafe { RegionView::new(start) }?;
        Ok(RegionWatch { view, _memory: memory })
    }

    /// The words as its endpoint wrote them: unverified.
    pub fn words(&self) -> ring::Words {
        self.view.words()
    }
}

/// A loop page, mapped read-only.
#[derive(Debug)]
pub struct LoopWatch {
    // Dropped before its memory.
    view: LoopView,
    _memory: SharedMapping,
}

impl LoopWatch {
    /// Maps a loop page.
    ///
    /// # Errors
    ///
    /// As for [`RegionWatch::new`].
    pub fn new(page: BorrowedFd<'_>) -> Result<LoopWatch, WatchError> {
        let memory = SharedMapping::read_only(page, LOOP_PAGE)?;
        let start = NonNull::new(memory.address()).ok_or(LayoutError::Alignment)?;
        // SAFETY: the page is mapped with its full size, and stays so beside `view`.
        let view = unsafe { LoopView::new(start) }?;
        Ok(LoopWatch { view, _memory: memory })
    }

    /// Whether the loop has published that it sleeps.
    pub fn asleep(&self) -> bool {
        self.view.asleep()
    }
}
