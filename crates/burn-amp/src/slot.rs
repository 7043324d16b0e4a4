//! Where a crate above this one attaches what it wants to be told. Knows nothing of it.

use std::{
    any::Any,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
};

/// How many slots are taken: where there is none, nobody looks further.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

type Content = Option<Arc<dyn Any + Send + Sync>>;

/// Room for one thing of any type.
#[derive(Default)]
pub(crate) struct Slot(RwLock<Content>);

/// Whether anything is attached anywhere.
pub(crate) fn are_any() -> bool {
    TAKEN.load(Ordering::Relaxed) > 0
}

impl Slot {
    pub(crate) fn of(content: Content) -> Self {
        let slot = Self::default();
        slot.replace(content);
        slot
    }

    pub(crate) fn get(&self) -> Content {
        if !are_any() {
            return None;
        }
        (self.0.read().unwrap_or_else(PoisonError::into_inner)).clone()
    }

    /// Puts something in, or nothing. Returns what was there.
    pub(crate) fn replace(&self, content: Content) -> Content {
        let mut slot = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match (slot.is_some(), content.is_some()) {
            (false, true) => drop(TAKEN.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(TAKEN.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
        std::mem::replace(&mut slot, content)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.replace(None);
    }
}
