//! A queue from the engine to one client, who may wait on a thread or as a future.
//!
//! It needs no runtime: a mutex, a condition variable for the thread, a waker for the future. The engine never waits
//! on it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The engine's end. Dropping it closes the pipe: the client reads what is left, then `None`.
#[derive(Debug)]
pub(crate) struct Sender<T>(Arc<Shared<T>>);

/// The client's end.
#[derive(Debug)]
pub(crate) struct Receiver<T>(Arc<Shared<T>>);

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    ready: Condvar,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    closed: bool,
    waker: Option<Waker>,
}

/// Makes a pipe.
pub(crate) fn pipe<T>() -> (Sender<T>, Receiver<T>) {
    let state = State {
        items: VecDeque::new(),
        closed: false,
        waker: None,
    };
    let shared = Arc::new(Shared {
        state: Mutex::new(state),
        ready: Condvar::new(),
    });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl<T> Sender<T> {
    /// Adds an item and wakes the client.
    pub(crate) fn send(&self, item: T) {
        self.0.change(|state| state.items.push_back(item));
    }

    /// Number of items that the client has not taken yet.
    pub(crate) fn unread(&self) -> usize {
        self.0.lock().items.len()
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.change(|state| state.closed = true);
    }
}

impl<T> Receiver<T> {
    /// Waits for the next item; `None` once the pipe is closed and empty.
    pub(crate) fn wait(&self) -> Option<T> {
        let mut state = self.0.lock();
        loop {
            if let Some(item) = state.items.pop_front() {
                return Some(item);
            }
            if state.closed {
                return None;
            }
            state = self
                .0
                .ready
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next item if it is there, else arranges to be woken.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.0.lock();
        if let Some(item) = state.items.pop_front() {
            return Poll::Ready(Some(item));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl<T> Shared<T> {
    /// A panic elsewhere cannot leave the state half changed, so a poisoned lock is taken as it is.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes the client, outside the lock.
    fn change(&self, change: impl FnOnce(&mut State<T>)) {
        let waker = {
            let mut state = self.lock();
            change(&mut state);
            state.waker.take()
        };
        self.ready.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use std::thread;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_thread_gets_every_item_and_then_the_end() {
        let (sender, receiver) = pipe();
        let reader = thread::spawn(move || {
            let mut items = Vec::new();
            while let Some(item) = receiver.wait() {
                items.push(item);
            }
            items
        });
        for item in 0..100 {
            sender.send(item);
        }
        drop(sender);
        assert_eq!(reader.join().unwrap(), (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn a_future_is_woken_by_an_item_and_by_the_end() {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let (sender, receiver) = pipe();

        let mut next = pin!(poll_fn(|context| receiver.poll(context)));
        assert!(next.as_mut().poll(&mut context).is_pending());
        assert_eq!(woken.0.load(Ordering::SeqCst), 0);
        sender.send(7);
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        assert_eq!(next.as_mut().poll(&mut context), Poll::Ready(Some(7)));

        assert!(next.as_mut().poll(&mut context).is_pending());
        drop(sender);
        assert_eq!(woken.0.load(Ordering::SeqCst), 2);
        assert_eq!(next.as_mut().poll(&mut context), Poll::Ready(None));
    }

    #[test]
    fn unread_items_are_counted() {
        let (sender, receiver) = pipe();
        sender.send('a');
        sender.send('b');
        assert_eq!(sender.unread(), 2);
        assert_eq!(receiver.wait(), Some('a'));
        assert_eq!(sender.unread(), 1);
    }
}
