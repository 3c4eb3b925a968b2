//! Scratch memory of a thread, kept between tasks.
//!
//! It grows to the largest task the thread has met and then stays; no kernel asks for more than a few hundred KiB. In
//! debug builds it holds NaN when a task gets it, so that a task that reads what it did not write shows.

use std::cell::RefCell;

use super::memory::Block;

thread_local! {
    /// Blocks of this thread that no task has: the one of a task inside a task lies below that of the outer one.
    static SCRATCH: RefCell<Vec<Block<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Lends `len` f32 of any content, aligned to 64 bytes, to a task. A task inside the task gets memory of its own.
///
/// # Panics
/// If the memory cannot be allocated.
pub(crate) fn with_scratch<R>(len: usize, task: impl FnOnce(&mut [f32]) -> R) -> R {
    let kept = SCRATCH
        .with_borrow_mut(Vec::pop)
        .filter(|kept| kept.len() >= len);
    let mut block =
        kept.unwrap_or_else(|| Block::zeroed("scratch of a thread", len).expect("scratch memory"));
    if cfg!(debug_assertions) {
        block[..len].fill(f32::NAN);
    }
    let result = task(&mut block[..len]);
    SCRATCH.with_borrow_mut(|kept| kept.push(block));
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_inside_tasks_do_not_share() {
        with_scratch(8, |outer| {
            outer.fill(1.0);
            with_scratch(16, |inner| inner.fill(2.0));
            assert_eq!(outer, [1.0; 8]);
        });
    }
}
