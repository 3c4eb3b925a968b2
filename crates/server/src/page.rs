//! The page at `/`: a form that asks the server it came from. Plain files, part of the program; nothing is loaded from
//! elsewhere, and the page's policy tells the browser so.

use axum::body::Body;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, Response};

/// Only this server is asked for anything, and no site may frame the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct File {
    pub(crate) path: &'static str,
    kind: &'static str,
    text: &'static str,
}

/// The files.
pub(crate) const FILES: [File; 3] = [
    File {
        path: "/",
        kind: "text/html; charset=utf-8",
        text: include_str!("page/index.html"),
    },
    File {
        path: "/page.css",
        kind: "text/css; charset=utf-8",
        text: include_str!("page/page.css"),
    },
    File {
        path: "/page.js",
        kind: "text/javascript; charset=utf-8",
        text: include_str!("page/page.js"),
    },
];

impl File {
    pub(crate) fn response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.text));
        let headers = response.headers_mut();
        for (name, value) in [
            (CONTENT_TYPE, self.kind),
            // Another version of the program has other files under the same names.
            (CACHE_CONTROL, "no-cache"),
            (CONTENT_SECURITY_POLICY, POLICY),
            (REFERRER_POLICY, "no-referrer"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_no_other_site() {
        for file in FILES {
            for scheme in ["http://", "https://", "src=\"//"] {
                assert!(!file.text.contains(scheme), "{}: {scheme}", file.path);
            }
        }
    }

    #[test]
    fn the_policy_allows_all_that_the_page_does() {
        let html = FILES[0].text;
        assert!(html.contains("href=\"page.css\"") && html.contains("src=\"page.js\""));
        // Neither scripts nor styles stand in the text itself.
        assert!(
            !html.contains("<style") && !html.contains(" style=") && !html.contains(" onclick=")
        );
        assert!(!FILES[2].text.contains("innerHTML"));
    }
}
