//! A panic in a request costs that request and nothing else.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

/// A future whose panic is an error: the panic's message.
pub(crate) struct Caught<F>(Pin<Box<F>>);

/// Runs a request's future so that its panic becomes an error. The future is dropped when it has panicked; the request
/// shares nothing that a panic leaves half changed (the engine is reached through messages).
pub(crate) fn catch<F: Future>(future: F) -> Caught<F> {
    Caught(Box::pin(future))
}

impl<F: Future> Future for Caught<F> {
    type Output = Result<F::Output, String>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(message(&*panic))),
        }
    }
}

/// The text of a panic.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error_with_its_message() {
        let caught = catch(async {
            tokio::task::yield_now().await;
            panic!("row {}", 7);
        });
        let result: Result<(), String> = caught.await;
        assert_eq!(result, Err("row 7".to_owned()));
    }

    #[tokio::test]
    async fn a_result_passes_through() {
        assert_eq!(catch(async { 3 }).await, Ok(3));
    }
}
