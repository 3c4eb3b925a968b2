//! The street outside: accepts connections, bounds their number and the time they may be quiet, and stops on request.
//!
//! Every connection is a task of its own. It ends when its client leaves, when no request was on it for
//! [`Limits::idle_max`] (which also covers a client that never says anything), or when the server stops. A client that
//! closes its side while a request is at hand is taken to have left: the request's future is dropped, which
//! cancels its work.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use hyper::body::{Bytes, Frame, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::app::App;
use crate::limits::Limits;

/// How long to wait before accepting again when the system refuses, usually for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Longest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// How often an HTTP/2 client is asked whether it is still there.
const PING_INTERVAL: Duration = Duration::from_secs(30);

/// Serves connections until `stop` is ready, then lets the requests at hand finish, for [`Limits::stop_wait_max`] at
/// most.
pub async fn serve(listener: TcpListener, app: Arc<App>, stop: impl Future<Output = ()>) {
    let limits = *app.limits();
    let places = Arc::new(Semaphore::new(limits.connections_max));
    let graceful = GracefulShutdown::new();
    let mut stop = pin!(stop);
    loop {
        let arrived = tokio::select! {
            arrived = accept(&listener, &places) => arrived,
            () = &mut stop => break,
        };
        match arrived {
            Ok((stream, place)) => {
                tokio::spawn(attend(stream, place, Arc::clone(&app), graceful.watcher()));
            }
            Err(error) => {
                tracing::warn!(%error, "no connection can be accepted at the moment");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    app.close();
    if timeout(limits.stop_wait_max, graceful.shutdown())
        .await
        .is_err()
    {
        tracing::warn!("some requests did not finish in time and are dropped");
    }
}

/// The next connection, once there is a place for it.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await;
    let place = place.expect("the places are never closed");
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}

/// Serves one connection to its end.
async fn attend(stream: TcpStream, _place: OwnedSemaphorePermit, app: Arc<App>, watcher: Watcher) {
    // Replies are small and written whole: waiting to fill a packet only delays them.
    if stream.set_nodelay(true).is_err() {
        return; // The client has left already.
    }
    let _open = app.metrics().connection();
    let limits = *app.limits();
    let activity = Arc::new(Activity::new());
    let service = service_fn(|request| {
        let request_at_hand = activity.enter();
        let app = Arc::clone(&app);
        async move {
            let response = app.answer(hyper::Request::map(request, Body::new)).await;
            let activity = Arc::clone(&request_at_hand.0);
            drop(request_at_hand);
            let busy = |body| Busy {
                body,
                activity,
                at_hand: None,
            };
            Ok::<_, std::convert::Infallible>(response.map(busy))
        }
    });
    let builder = builder(&limits);
    let connection = watcher.watch(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        result = connection => {
            if let Err(error) = result {
                tracing::debug!(error, "a connection ended early");
            }
        }
        () = activity.quiet(limits.idle_max) => {}
    }
}

fn builder(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_wait_max)
        .max_buf_size(HEAD_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams_max)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .keep_alive_interval(PING_INTERVAL);
    builder
}

/// What one connection is doing.
#[derive(Debug)]
struct Activity(Mutex<Doing>);

#[derive(Clone, Copy, Debug)]
struct Doing {
    requests: usize,
    /// When the last request ended, or the connection was made.
    since: Instant,
}

/// A request that its connection waits for.
struct AtHand(Arc<Activity>);

/// The body of a reply. While it waits for what is to be sent, its connection is not quiet; while the client takes
/// nothing, it is.
struct Busy {
    body: Body,
    activity: Arc<Activity>,
    at_hand: Option<AtHand>,
}

impl HttpBody for Busy {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.at_hand.is_none() {
            self.at_hand = Some(self.activity.enter());
        }
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if frame.is_ready() {
            self.at_hand = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Activity {
    fn new() -> Activity {
        Activity(Mutex::new(Doing {
            requests: 0,
            since: Instant::now(),
        }))
    }

    fn enter(self: &Arc<Self>) -> AtHand {
        self.doing().requests += 1;
        AtHand(Arc::clone(self))
    }

    /// Waits until no request has been at hand for `limit`.
    async fn quiet(&self, limit: Duration) {
        loop {
            let Doing { requests, since } = *self.doing();
            let from = if requests == 0 { since } else { Instant::now() };
            if from.elapsed() >= limit {
                return;
            }
            sleep_until(from + limit).await;
        }
    }

    fn doing(&self) -> MutexGuard<'_, Doing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AtHand {
    fn drop(&mut self) {
        let mut doing = self.0.doing();
        doing.requests -= 1;
        doing.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_requests_is_quiet_after_the_limit() {
        let activity = Activity::new();
        let start = Instant::now();
        activity.quiet(LIMIT).await;
        assert_eq!(start.elapsed(), LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn quiet_is_counted_from_the_end_of_the_last_request() {
        let activity = Arc::new(Activity::new());
        let at_hand = activity.enter();
        let start = Instant::now();
        tokio::spawn(async move {
            sleep(Duration::from_secs(95)).await;
            drop(at_hand);
        });
        activity.quiet(LIMIT).await;
        assert_eq!(start.elapsed(), Duration::from_secs(105));
    }
}
