//! Slots, each owned by at most one stream.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use descant_model::Slot;

/// All slots of a backend.
#[derive(Debug)]
pub(crate) struct Slots {
    count: usize,
    /// Empty slots, to be given out from the end.
    free: Vec<Slot>,
    /// Slots that their owners gave back; they must be emptied before anyone else gets them.
    used: Arc<Mutex<Vec<Slot>>>,
}

/// A slot that is somebody's. However its owner ends, dropping this gives the slot back.
#[derive(Debug)]
pub(crate) struct OwnedSlot {
    slot: Slot,
    used: Arc<Mutex<Vec<Slot>>>,
}

impl Slots {
    /// `count` empty slots.
    pub(crate) fn new(count: usize) -> Slots {
        Slots {
            count,
            free: (0..count).rev().map(Slot).collect(),
            used: Arc::default(),
        }
    }

    /// Number of slots that can be taken now.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Number of slots, taken or not.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Takes an empty slot.
    pub(crate) fn take(&mut self) -> Option<OwnedSlot> {
        let slot = self.free.pop()?;
        Some(OwnedSlot {
            slot,
            used: Arc::clone(&self.used),
        })
    }

    /// Empties every slot that was given back; from then on it can be taken again.
    pub(crate) fn sweep(&mut self, mut empty: impl FnMut(Slot)) {
        let used = std::mem::take(&mut *lock(&self.used));
        for slot in used {
            empty(slot);
            self.free.push(slot);
        }
    }
}

impl OwnedSlot {
    /// Which slot it is.
    pub(crate) fn slot(&self) -> Slot {
        self.slot
    }
}

impl Drop for OwnedSlot {
    fn drop(&mut self) {
        lock(&self.used).push(self.slot);
    }
}

/// A push cannot leave the list half changed, so a poisoned lock is taken as it is.
fn lock(list: &Mutex<Vec<Slot>>) -> MutexGuard<'_, Vec<Slot>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_emptied_before_it_is_given_out_again() {
        let mut slots = Slots::new(2);
        let first = slots.take().unwrap();
        let second = slots.take().unwrap();
        assert_ne!(first.slot(), second.slot());
        assert!(slots.take().is_none());

        let given_back = second.slot();
        drop(second);
        assert!(slots.take().is_none(), "it was not emptied yet");

        let mut emptied = Vec::new();
        slots.sweep(|slot| emptied.push(slot));
        assert_eq!(emptied, [given_back]);
        assert_eq!(slots.take().unwrap().slot(), given_back);
    }
}
