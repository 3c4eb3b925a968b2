//! Pictures in a request: the forms in which clients of this family send them, checked without a look at the pixels.
//!
//! A picture is inside the request or it is refused: nothing is fetched, no file is read.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::fault::FaultKind;
use crate::json::{Object, Value};

/// Most pictures of a request.
pub const IMAGES_MAX: usize = 8;

/// Standard base64, with its padding or without it: clients send both.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A named part of a multipart body, beside the request itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// The part's name.
    pub name: &'a str,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// What is wrong with a picture.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Flaw {
    pub(crate) kind: FaultKind,
    pub(crate) msg: &'static str,
}

/// Checks an entry of `images`: a data URL, bare base64, `{"content_type", "base64"}`, or `{"url"}` with a data URL.
pub(crate) fn check_image(entry: &Value) -> Result<(), Flaw> {
    let text = match entry {
        Value::String(text) => Some(text.as_str()),
        Value::Object(object) => {
            let of = |key| object.get(key).and_then(Value::as_str);
            of("base64").or_else(|| of("url"))
        }
        _ => None,
    };
    match text {
        Some(text) => check_text(text),
        None => flaw(
            FaultKind::ValueError,
            "wanted a data URL, base64 text, or an object with base64 or url",
        ),
    }
}

/// Checks an entry of `assets`: a picture in base64, or in a part of the body.
pub(crate) fn check_asset(asset: &Object, parts: &[Part<'_>]) -> Result<(), Flaw> {
    if asset.get("type").and_then(Value::as_str) != Some("image") {
        return flaw(FaultKind::ValueError, "the type of an asset is image");
    }
    // A part wins over bytes in the text.
    if let Some(name) = asset.get("part").filter(|name| !name.is_null()) {
        let part = parts.iter().find(|part| name.as_str() == Some(part.name));
        return match part {
            Some(part) => check_bytes(part.bytes),
            None => flaw(FaultKind::ValueError, "the body has no part of this name"),
        };
    }
    let Some(text) = asset.get("data_base64").and_then(Value::as_str) else {
        return flaw(FaultKind::ValueError, "wanted part or data_base64");
    };
    let format = asset.get("format").and_then(Value::as_str);
    if !matches!(format, Some("jpeg" | "jpg" | "png")) {
        return flaw(
            FaultKind::ValueError,
            "a format is required: png, jpg or jpeg",
        );
    }
    check_base64(text)
}

fn check_text(text: &str) -> Result<(), Flaw> {
    match text.split_once(':') {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("data") => match rest.split_once(',') {
            Some((head, data)) if head.to_ascii_lowercase().ends_with(";base64") => {
                check_base64(data)
            }
            _ => flaw(FaultKind::ImageInvalid, "a data URL must hold base64"),
        },
        // No base64 text has a colon in it.
        Some(_) => flaw(
            FaultKind::ImageUrlNotAllowed,
            "nothing is fetched for a request; send the picture itself as a data URL or base64",
        ),
        None => check_base64(text),
    }
}

fn check_base64(text: &str) -> Result<(), Flaw> {
    // Encoders that break lines are common.
    let blank = |byte: &u8| byte.is_ascii_whitespace();
    let decoded = match text.bytes().any(|byte| blank(&byte)) {
        false => BASE64.decode(text),
        true => BASE64.decode(text.bytes().filter(|byte| !blank(byte)).collect::<Vec<_>>()),
    };
    match decoded {
        Ok(bytes) => check_bytes(&bytes),
        Err(_) => flaw(FaultKind::ImageInvalid, "not base64"),
    }
}

/// Looks at the first bytes, whatever type was named.
fn check_bytes(bytes: &[u8]) -> Result<(), Flaw> {
    let known = bytes.starts_with(b"\x89PNG\r\n\x1a\n")
        || bytes.starts_with(b"\xff\xd8\xff")
        || bytes.starts_with(b"GIF8")
        || (bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP".as_slice()));
    match known {
        true => Ok(()),
        false => flaw(FaultKind::ImageInvalid, "not a PNG, JPEG, WebP or GIF file"),
    }
}

fn flaw(kind: FaultKind, msg: &'static str) -> Result<(), Flaw> {
    Err(Flaw { kind, msg })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::parse_str;

    /// Eight bytes that open a PNG file, in base64.
    const PNG: &str = "iVBORw0KGgo=";

    fn image(entry: &str) -> Result<(), FaultKind> {
        let entry = entry.replace("PNG", PNG);
        check_image(&parse_str(&entry).unwrap()).map_err(|flaw| flaw.kind)
    }

    #[test]
    fn every_form_of_a_picture_is_read() {
        for entry in [
            r#""data:image/png;base64,PNG""#,
            r#""DATA:;Base64,PNG""#,
            r#""PNG""#,
            r#""iVBORw0KGgo""#,
            r#""iVBO\nRw0K\r\nGgo=""#,
            r#""/9j/""#,
            r#""R0lGODlh""#,
            r#""UklGRgAAAABXRUJQ""#,
            r#"{"content_type":"image/png","base64":"PNG"}"#,
            r#"{"url":"data:image/png;base64,PNG","detail":"low"}"#,
        ] {
            assert_eq!(image(entry), Ok(()), "{entry}");
        }
    }

    #[test]
    fn what_lies_elsewhere_is_refused_unread() {
        for entry in [
            r#""https://example.org/cat.png""#,
            r#""HTTP://127.0.0.1/""#,
            r#""file:///etc/hostname""#,
            r#""ftp:x""#,
            r#"{"url":"https://example.org/cat.png"}"#,
        ] {
            assert_eq!(image(entry), Err(FaultKind::ImageUrlNotAllowed), "{entry}");
        }
        for path in [
            r#""/etc/passwd""#,
            r#""cat.png""#,
            r#""../cat""#,
            r#""/etc/hostname""#,
        ] {
            assert_eq!(image(path), Err(FaultKind::ImageInvalid), "{path}");
        }
    }

    #[test]
    fn what_is_no_picture_is_named() {
        for (entry, kind) in [
            (r#""""#, FaultKind::ImageInvalid),
            (r#""aGVsbG8=""#, FaultKind::ImageInvalid),
            (r#""data:image/png,PNG""#, FaultKind::ImageInvalid),
            (r#""data:image/png;base64""#, FaultKind::ImageInvalid),
            (r#""data:image/png;base64,***""#, FaultKind::ImageInvalid),
            ("7", FaultKind::ValueError),
            ("null", FaultKind::ValueError),
            ("{}", FaultKind::ValueError),
            (r#"{"url":7}"#, FaultKind::ValueError),
        ] {
            assert_eq!(image(entry), Err(kind), "{entry}");
        }
    }

    #[test]
    fn assets_lie_in_the_text_or_in_a_part() {
        let parts = [
            Part {
                name: "a",
                bytes: b"\x89PNG\r\n\x1a\n",
            },
            Part {
                name: "b",
                bytes: b"hello",
            },
        ];
        let asset = |text: &str| {
            let asset = parse_str(&text.replace("PNG", PNG)).unwrap();
            check_asset(asset.as_object().unwrap(), &parts).map_err(|flaw| flaw.kind)
        };
        for taken in [
            r#"{"type":"image","part":"a"}"#,
            r#"{"type":"image","part":"a","data_base64":"wrong"}"#,
            r#"{"type":"image","format":"png","data_base64":"PNG"}"#,
        ] {
            assert_eq!(asset(taken), Ok(()), "{taken}");
        }
        for (refused, kind) in [
            (r#"{"part":"a"}"#, FaultKind::ValueError),
            (r#"{"type":"image","part":"c"}"#, FaultKind::ValueError),
            (r#"{"type":"image","part":7}"#, FaultKind::ValueError),
            (r#"{"type":"image","part":"b"}"#, FaultKind::ImageInvalid),
            (r#"{"type":"image"}"#, FaultKind::ValueError),
            (
                r#"{"type":"image","data_base64":"PNG"}"#,
                FaultKind::ValueError,
            ),
            (
                r#"{"type":"image","format":"png","data_base64":"aGk="}"#,
                FaultKind::ImageInvalid,
            ),
        ] {
            assert_eq!(asset(refused), Err(kind), "{refused}");
        }
    }
}
