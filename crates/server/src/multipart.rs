//! Multipart forms (RFC 7578): the request as one part, pictures as others.
//!
//! The body is at hand as a whole, bounded and decoded, so a form is a few slices of it; nothing is copied.

use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use descant_decision::Part;
use memchr::memmem::Finder;

/// Most parts of a form.
const PARTS_MAX: usize = 64;
/// Most header fields of a part.
const FIELDS_MAX: usize = 16;
/// Longest boundary, as RFC 2046 has it.
const BOUNDARY_BYTES_MAX: usize = 70;
/// The part that holds the request.
const REQUEST: &str = "request";

/// A form, cut into its parts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Form<'a> {
    /// The part named `request`.
    pub(crate) request: &'a [u8],
    /// All others, in order.
    pub(crate) parts: Vec<Part<'a>>,
}

/// Whether a content type is multipart of any kind.
pub(crate) fn is_multipart(headers: &HeaderMap) -> bool {
    content_type(headers).is_some_and(|found| {
        found
            .get(..10)
            .is_some_and(|start| start.eq_ignore_ascii_case("multipart/"))
    })
}

/// The boundary of a form, if the content type says that the body is one.
pub(crate) fn boundary(headers: &HeaderMap) -> Option<String> {
    let (kind, parameters) = content_type(headers)?.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    parameter(parameters, "boundary")
        .filter(|boundary| !boundary.is_empty() && boundary.len() <= BOUNDARY_BYTES_MAX)
}

/// Cuts a body at its boundary.
///
/// # Errors
/// What is wrong with the form.
pub(crate) fn parse<'a>(body: &'a [u8], boundary: &str) -> Result<Form<'a>, &'static str> {
    let delimiter = format!("\r\n--{boundary}");
    let finder = Finder::new(delimiter.as_bytes());
    // The first delimiter may stand at the very start, without the line end before it.
    let mut rest = match body.strip_prefix(&delimiter.as_bytes()[2..]) {
        Some(rest) => rest,
        None => {
            let start = finder.find(body).ok_or("its boundary does not occur")?;
            &body[start + delimiter.len()..]
        }
    };
    let (mut request, mut parts) = (None, Vec::new());
    while !rest.starts_with(b"--") {
        let blank = rest
            .iter()
            .take_while(|b| matches!(b, b' ' | b'\t'))
            .count();
        let part = rest[blank..]
            .strip_prefix(b"\r\n")
            .ok_or("a boundary is not followed by a line end")?;
        let end = finder.find(part).ok_or("its last boundary is missing")?;
        let (name, bytes) = named(&part[..end])?;
        rest = &part[end + delimiter.len()..];
        match name {
            REQUEST if request.is_some() => return Err("it has two parts named request"),
            REQUEST => request = Some(bytes),
            _ if parts.len() == PARTS_MAX => return Err("it has too many parts"),
            name => parts.push(Part { name, bytes }),
        }
    }
    let request = request.ok_or("a part named request is required")?;
    Ok(Form { request, parts })
}

/// The name and content of a part.
fn named(part: &[u8]) -> Result<(&str, &[u8]), &'static str> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let Ok(httparse::Status::Complete((head, fields))) = httparse::parse_headers(part, &mut fields)
    else {
        return Err("the header of a part cannot be read");
    };
    let disposition = fields
        .iter()
        .find(|field| field.name.eq_ignore_ascii_case("content-disposition"))
        .ok_or("a part has no content-disposition")?;
    let name = name_in(disposition.value).ok_or("a part has no name")?;
    Ok((name, &part[head..]))
}

/// The name in `form-data; name="…"; filename="…"`. A name with escapes in it stays as it was written, which is as good a
/// name as any.
fn name_in(disposition: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(disposition).ok()?;
    let (_, parameters) = text.split_once(';')?;
    raw_parameter(parameters, "name").filter(|name| !name.is_empty())
}

/// A parameter's value, escapes resolved.
fn parameter(parameters: &str, name: &str) -> Option<String> {
    raw_parameter(parameters, name).map(|value| value.replace('\\', ""))
}

/// A parameter's value as it stands between its quotes, or without any.
fn raw_parameter<'a>(parameters: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = parameters;
    loop {
        let (key, after) = rest.split_once('=')?;
        let after = after.trim_start();
        let (value, next) = match after.strip_prefix('"') {
            Some(quoted) => {
                let end = quote_end(quoted)?;
                (&quoted[..end], quoted[end + 1..].split_once(';'))
            }
            None => {
                let value = after.split(';').next().unwrap_or_default();
                (value.trim_end(), after.split_once(';'))
            }
        };
        if key.trim().eq_ignore_ascii_case(name) {
            return Some(value);
        }
        rest = next?.1;
    }
}

/// Where a quoted text ends, whose escapes are passed over.
fn quote_end(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let end = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        end
    })
}

fn content_type(headers: &HeaderMap) -> Option<&str> {
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(content_type: &str) -> HeaderMap {
        let value = HeaderValue::from_str(content_type).unwrap();
        HeaderMap::from_iter([(CONTENT_TYPE, value)])
    }

    #[test]
    fn a_boundary_is_found_however_it_is_written() {
        for (content_type, wanted) in [
            ("multipart/form-data; boundary=abc", Some("abc")),
            ("Multipart/Form-Data;Boundary=\"a b;c\"", Some("a b;c")),
            (
                "multipart/form-data; charset=utf-8; boundary=abc ",
                Some("abc"),
            ),
            (
                "multipart/form-data; charset=\"x;y\"; boundary=abc",
                Some("abc"),
            ),
            ("multipart/form-data", None),
            ("multipart/form-data; boundary=", None),
            ("multipart/form-data; boundary=\"abc", None),
            ("multipart/mixed; boundary=abc", None),
            ("application/json; boundary=abc", None),
        ] {
            assert_eq!(
                boundary(&headers(content_type)).as_deref(),
                wanted,
                "{content_type}"
            );
        }
        let long = format!("multipart/form-data; boundary={}", "x".repeat(71));
        assert_eq!(boundary(&headers(&long)), None);
        assert!(is_multipart(&headers("MULTIPART/mixed")));
        assert!(!is_multipart(&headers("text/é")));
    }

    /// As httpx writes it.
    const FORM: &[u8] = b"--b\r\nContent-Disposition: form-data; name=\"request\"\r\nContent-Type: application/json\r\n\r\n{}\r\n\
        --b\r\nContent-Disposition: form-data; name=\"asset-0\"; filename=\"a;b.png\"\r\nContent-Type: image/png\r\n\r\n\x89PNG\r\n--\r\n\xff\r\n--b--\r\n";

    #[test]
    fn a_form_is_cut_into_its_parts() {
        let form = parse(FORM, "b").unwrap();
        assert_eq!(form.request, b"{}");
        let bytes: &[u8] = b"\x89PNG\r\n--\r\n\xff";
        assert_eq!(
            form.parts,
            [Part {
                name: "asset-0",
                bytes
            }]
        );
        // With a preamble, and blanks behind a boundary.
        let preamble = [b"hello\r\n".as_slice(), FORM].concat();
        assert_eq!(parse(&preamble, "b"), parse(FORM, "b"));
    }

    #[test]
    fn what_is_no_form_is_said() {
        let part =
            |name: &str| format!("--b\r\ncontent-disposition: form-data; name={name}\r\n\r\nx\r\n");
        for (body, fault) in [
            (String::new(), "its boundary does not occur"),
            ("--b".to_owned(), "a boundary is not followed by a line end"),
            ("--b--".to_owned(), "a part named request is required"),
            (
                "--bx\r\n\r\n--b--".to_owned(),
                "a boundary is not followed by a line end",
            ),
            (part("request"), "its last boundary is missing"),
            (
                format!("{}--b--", part("asset")),
                "a part named request is required",
            ),
            (
                format!("{0}{0}--b--", part("request")),
                "it has two parts named request",
            ),
            (
                "--b\r\n\r\nx\r\n--b--".to_owned(),
                "a part has no content-disposition",
            ),
            (
                "--b\r\nno header\r\n--b--".to_owned(),
                "the header of a part cannot be read",
            ),
            (format!("{}--b--", part("")), "a part has no name"),
            (
                format!("{}--b--", part("a").repeat(PARTS_MAX + 1)),
                "it has too many parts",
            ),
        ] {
            assert_eq!(parse(body.as_bytes(), "b").unwrap_err(), fault, "{body:?}");
        }
    }

    #[test]
    fn a_form_cut_anywhere_is_refused() {
        for end in 0..FORM.len() - 4 {
            assert!(parse(&FORM[..end], "b").is_err(), "{end}");
        }
    }
}
