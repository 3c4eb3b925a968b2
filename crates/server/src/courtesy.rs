//! Threads that compute make way for those that serve connections.
//!
//! Computing threads use every core for as long as a round lasts. Where all have the same priority, a thread that has one
//! token to send may wait for the scheduler's whole turn, some four milliseconds, until a core is its own.

/// Lowers the calling thread's priority a little, once; threads that it starts from then on have it from the start. They
/// get what the threads that only move bytes leave, which is nearly all. On systems other than Linux, where a priority belongs
/// to the whole process, nothing happens.
pub fn make_way_for_connections() {
    #[cfg(target_os = "linux")]
    {
        use std::cell::Cell;

        thread_local! {
            static MADE: Cell<bool> = const { Cell::new(false) };
        }
        if !MADE.replace(true) {
            // Raising the value is always allowed; where it is not, all goes on as before.
            let _ = rustix::process::nice(STEP);
        }
    }
}

/// A third of the weight of others, to the Linux scheduler.
#[cfg(target_os = "linux")]
const STEP: i32 = 5;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::thread;

    use super::*;

    fn priority() -> i32 {
        // What is asked of nobody in particular is about the calling thread.
        rustix::process::getpriority_process(None).expect("it has one")
    }

    #[test]
    fn a_thread_and_its_children_make_way_once() {
        let before = priority();
        let (first, second, child) = thread::spawn(|| {
            make_way_for_connections();
            let first = priority();
            make_way_for_connections();
            let child = thread::spawn(priority).join().expect("it ends");
            (first, priority(), child)
        })
        .join()
        .expect("it ends");
        let wanted = (before + STEP).min(19);
        assert_eq!((first, second, child), (wanted, wanted, wanted));
        assert_eq!(priority(), before, "the others keep theirs");
    }
}
