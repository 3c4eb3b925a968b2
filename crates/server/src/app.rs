//! The routes, and what every reply has in common: a request id, a log line, JSON, no panic.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{ALLOW, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use axum::routing::{MethodRouter, any, get, post};
use descant_decision::json::{Object, Value, to_json};
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;

use crate::body::Door;
use crate::error::Refused;
use crate::limits::Limits;
use crate::models;
use crate::names::Names;
use crate::panic::catch;
use crate::request_id::RequestId;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const X_TYPESAFE_REQUEST_ID: HeaderName = HeaderName::from_static("x-typesafe-request-id");

/// The server apart from its connections: requests in, replies out.
#[derive(Debug)]
pub struct App {
    desk: Arc<Desk>,
    routes: TowerToHyperService<Router>,
}
