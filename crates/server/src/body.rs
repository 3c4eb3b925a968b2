//! The front door: a request's body, bounded in bytes, in time and in what all requests hold together, and decoded.

use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use axum::http::{HeaderMap, HeaderName};
use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use http_body_util::BodyExt;
use ruzstd::decoding::StreamingDecoder;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::Refused;
use crate::limits::Limits;
use crate::multipart::{self, Form};

/// The most of an oversized body that is read and thrown away, so that a client which is still sending sees the
/// refusal rather than a broken connection.
const DRAIN_BYTES_MAX: usize = 128 << 20;
/// How long that may take.
const DRAIN_WAIT_MAX: Duration = Duration::from_secs(3);
/// What a body is told that finds no room; those at hand are read within moments.
const FULL: Refused = Refused::Busy {
    retry_after_ms: 1000,
};
/// Bytes that a decoder gives at a time.
const STEP_BYTES: usize = 64 << 10;
/// The window that a zstd decoder must be able to keep, by RFC 8878.
const ZSTD_WINDOW_BYTES: usize = 8 << 20;

/// Reads bodies within the limits.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    limits: Limits,
    /// One permit a byte of all bodies held.
    room: Arc<Semaphore>,
}

/// A body as it was sent, with the room it takes.
#[derive(Debug)]
pub(crate) struct Held {
    bytes: Vec<u8>,
    encoding: Encoding,
    /// The boundary, if the body is a multipart form.
    boundary: Option<String>,
    room: Room,
    bytes_max: usize,
}

/// How a body is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Deflate,
    Gzip,
    Identity,
    Zstd,
}

/// The part of the bodies' common room that one request has taken; given back when dropped.
#[derive(Debug)]
struct Room {
    of: Arc<Semaphore>,
    taken: Option<OwnedSemaphorePermit>,
}

impl Door {
    pub(crate) fn new(limits: Limits) -> Door {
        Door {
            limits,
            room: Arc::new(Semaphore::new(limits.bodies_bytes_max)),
        }
    }

    /// Reads a body to its end.
    ///
    /// # Errors
    /// A content type or encoding that is not read, a body that is too big, too slow or cut off, or [`Refused::Busy`]
    /// when the bodies at hand leave no room for it.
    pub(crate) async fn read(&self, headers: &HeaderMap, mut body: Body) -> Result<Held, Refused> {
        let encoding = Encoding::from_headers(headers)?;
        let boundary = boundary(headers)?;
        let wait = self.limits.body_wait_max;
        let read = timeout(wait, self.collect(headers, encoding, &mut body)).await;
        let result = read.unwrap_or(Err(Refused::BodySlow {
            waited_s: wait.as_secs(),
        }));
        if let Err(Refused::BodyTooBig { .. }) = result
            && !headers.contains_key(EXPECT)
        {
            // Whether all of it came or not, the refusal is sent next.
            let _ = timeout(DRAIN_WAIT_MAX, drain(&mut body)).await;
        }
        let mut held = result?;
        held.boundary = boundary;
        Ok(held)
    }

    async fn collect(
        &self,
        headers: &HeaderMap,
        encoding: Encoding,
        body: &mut Body,
    ) -> Result<Held, Refused> {
        let bytes_max = self.limits.body_bytes_max;
        let too_big = Refused::BodyTooBig {
            allowed_bytes: bytes_max,
        };
        let declared = text(headers, &CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
        if declared.is_some_and(|length| length > bytes_max as u64) {
            return Err(too_big);
        }
        let room = Room {
            of: Arc::clone(&self.room),
            taken: None,
        };
        let mut held = Held {
            bytes: Vec::new(),
            encoding,
            boundary: None,
            room,
            bytes_max,
        };
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Refused::BodyIncomplete)?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if held.bytes.len() + data.len() > bytes_max {
                return Err(too_big);
            }
            held.room.grow(data.len())?;
            held.bytes.extend_from_slice(&data);
        }
        Ok(held)
    }
}

impl Held {
    /// Bytes of the body as it was sent.
    pub(crate) fn sent_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The body, decoded. Takes time in proportion to the body: not for the threads that serve connections.
    ///
    /// # Errors
    /// A body that is not what its `content-encoding` says, or is too big once decoded, or finds no room.
    pub(crate) fn decoded(mut self) -> Result<Held, Refused> {
        let Some(name) = self.encoding.packed() else {
            return Ok(self);
        };
        let packed = std::mem::take(&mut self.bytes);
        // A decoder that panics has met bytes that no encoder writes.
        let decoded = catch_unwind(AssertUnwindSafe(|| self.unpack(&packed)));
        match decoded {
            Ok(Ok(())) => Ok(self),
            Ok(Err(Unpack::Refused(refused))) => Err(refused),
            Ok(Err(Unpack::Io)) | Err(_) => Err(Refused::BodyUndecodable { encoding: name }),
        }
    }

    /// The request in a decoded body, and what came beside it.
    ///
    /// # Errors
    /// A multipart form that cannot be read.
    pub(crate) fn form(&self) -> Result<Form<'_>, Refused> {
        match &self.boundary {
            Some(boundary) => {
                multipart::parse(&self.bytes, boundary).map_err(|fault| Refused::BodyForm { fault })
            }
            None => Ok(Form {
                request: &self.bytes,
                parts: Vec::new(),
            }),
        }
    }

    fn unpack(&mut self, packed: &[u8]) -> Result<(), Unpack> {
        match self.encoding {
            Encoding::Identity => Ok(()),
            Encoding::Gzip => self.take_all(MultiGzDecoder::new(packed)),
            Encoding::Deflate if is_zlib(packed) => self.take_all(ZlibDecoder::new(packed)),
            Encoding::Deflate => self.take_all(DeflateDecoder::new(packed)),
            Encoding::Zstd => self.unpack_zstd(packed),
        }
    }

    /// Unpacks every frame of a zstd body, checking the frames' sums.
    fn unpack_zstd(&mut self, mut packed: &[u8]) -> Result<(), Unpack> {
        let window_max = self.bytes_max.max(ZSTD_WINDOW_BYTES) as u64;
        while !packed.is_empty() {
            if let Some(rest) = skip_zstd_frame(packed)? {
                packed = rest;
                continue;
            }
            let mut frame = StreamingDecoder::new_with_max_window_size(&mut packed, window_max)
                .map_err(|_| Unpack::Io)?;
            self.take_all(&mut frame)?;
            let decoder = frame.into_frame_decoder();
            let wanted = decoder.get_checksum_from_data();
            if wanted.is_some() && wanted != decoder.get_calculated_checksum() {
                return Err(Unpack::Io);
            }
        }
        Ok(())
    }

    /// Appends what a decoder gives, until its end or the limit.
    fn take_all(&mut self, mut decoder: impl Read) -> Result<(), Unpack> {
        let mut step = vec![0; STEP_BYTES];
        loop {
            let got = match decoder.read(&mut step) {
                Ok(0) => return Ok(()),
                Ok(got) => got,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return Err(Unpack::Io),
            };
            if self.bytes.len() + got > self.bytes_max {
                let allowed_bytes = self.bytes_max;
                return Err(Unpack::Refused(Refused::BodyTooBig { allowed_bytes }));
            }
            self.room.grow(got).map_err(Unpack::Refused)?;
            self.bytes.extend_from_slice(&step[..got]);
        }
    }
}

/// Why unpacking stopped.
enum Unpack {
    /// The decoder did not understand the bytes.
    Io,
    /// A limit.
    Refused(Refused),
}

impl Encoding {
    fn from_headers(headers: &HeaderMap) -> Result<Encoding, Refused> {
        let Some(value) = headers.get(CONTENT_ENCODING) else {
            return Ok(Encoding::Identity);
        };
        let found = String::from_utf8_lossy(value.as_bytes())
            .trim()
            .to_ascii_lowercase();
        match found.as_str() {
            "" | "identity" => Ok(Encoding::Identity),
            "deflate" => Ok(Encoding::Deflate),
            "gzip" | "x-gzip" => Ok(Encoding::Gzip),
            "zstd" => Ok(Encoding::Zstd),
            _ => Err(Refused::BodyEncoding { found }),
        }
    }

    /// The name of an encoding that needs decoding.
    fn packed(self) -> Option<&'static str> {
        match self {
            Encoding::Deflate => Some("deflate"),
            Encoding::Gzip => Some("gzip"),
            Encoding::Identity => None,
            Encoding::Zstd => Some("zstd"),
        }
    }
}

impl Room {
    /// Takes room for further bytes.
    fn grow(&mut self, bytes: usize) -> Result<(), Refused> {
        let bytes = u32::try_from(bytes).map_err(|_| FULL)?;
        let more = Arc::clone(&self.of)
            .try_acquire_many_owned(bytes)
            .map_err(|_| FULL)?;
        match &mut self.taken {
            Some(taken) => taken.merge(more),
            None => self.taken = Some(more),
        }
        Ok(())
    }
}

/// Reads and forgets the rest of a body.
async fn drain(body: &mut Body) {
    let mut drained = 0;
    while let Some(Ok(frame)) = body.frame().await {
        drained += frame.data_ref().map_or(0, |data| data.len());
        if drained > DRAIN_BYTES_MAX {
            return;
        }
    }
}

/// The boundary of a form. Any content type that is not multipart is taken for JSON (`curl -d` sends a form's).
fn boundary(headers: &HeaderMap) -> Result<Option<String>, Refused> {
    match multipart::boundary(headers) {
        None if multipart::is_multipart(headers) => Err(Refused::MediaType {
            found: text(headers, &CONTENT_TYPE).unwrap_or_default().to_owned(),
        }),
        boundary => Ok(boundary),
    }
}

/// A header's value where it is text.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .map(str::trim)
}

/// Whether bytes start with a zlib header (RFC 1950). HTTP's `deflate` has one; some clients leave it out.
fn is_zlib(bytes: &[u8]) -> bool {
    match bytes {
        [method, flags, ..] => {
            method & 0x0f == 8 && u16::from_be_bytes([*method, *flags]).is_multiple_of(31)
        }
        _ => false,
    }
}

/// What follows a skippable zstd frame, if the bytes start with one (RFC 8878, 3.1.2).
fn skip_zstd_frame(bytes: &[u8]) -> Result<Option<&[u8]>, Unpack> {
    let Some((head, rest)) = bytes.split_first_chunk::<8>() else {
        return Ok(None);
    };
    let [m0, m1, m2, m3, length @ ..] = *head;
    if u32::from_le_bytes([m0, m1, m2, m3]) & !0xf != 0x184d_2a50 {
        return Ok(None);
    }
    rest.get(u32::from_le_bytes(length) as usize..)
        .map(Some)
        .ok_or(Unpack::Io)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use axum::body::Bytes;
    use axum::http::HeaderValue;
    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use http_body_util::channel::Channel;

    use super::*;

    const TEXT: &[u8] =
        br#"{"state": "the lamp is broken, the lamp is broken, the lamp is broken"}"#;

    fn door(body_bytes_max: usize, bodies_bytes_max: usize) -> Door {
        Door::new(Limits {
            body_bytes_max,
            bodies_bytes_max,
            ..Limits::default()
        })
    }

    fn headers(encoding: &str) -> HeaderMap {
        HeaderMap::from_iter([(CONTENT_ENCODING, HeaderValue::from_str(encoding).unwrap())])
    }

    async fn through(door: &Door, encoding: &str, bytes: Vec<u8>) -> Result<Vec<u8>, Refused> {
        let held = door.read(&headers(encoding), Body::from(bytes)).await?;
        Ok(held.decoded()?.form()?.request.to_vec())
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest)
    }

    #[tokio::test]
    async fn every_encoding_is_decoded() {
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
        zlib.write_all(TEXT).unwrap();
        let mut raw = DeflateEncoder::new(Vec::new(), Compression::fast());
        raw.write_all(TEXT).unwrap();
        let two_members = [gzip(&TEXT[..20]), gzip(&TEXT[20..])].concat();
        let skippable = [
            &0x184d_2a53_u32.to_le_bytes()[..],
            &3_u32.to_le_bytes(),
            b"abc",
        ]
        .concat();
        let frames = [skippable, zstd(&TEXT[..20]), zstd(&TEXT[20..])].concat();
        let door = door(1 << 20, 1 << 20);
        for (encoding, bytes) in [
            ("identity", TEXT.to_vec()),
            ("", TEXT.to_vec()),
            ("gzip", gzip(TEXT)),
            ("X-GZIP", gzip(TEXT)),
            ("gzip", two_members),
            ("deflate", zlib.finish().unwrap()),
            ("deflate", raw.finish().unwrap()),
            ("zstd", zstd(TEXT)),
            ("zstd", frames),
        ] {
            assert_eq!(
                through(&door, encoding, bytes).await.as_deref(),
                Ok(TEXT),
                "{encoding}"
            );
        }
    }

    #[tokio::test]
    async fn other_encodings_and_types_are_refused() {
        let door = door(1 << 20, 1 << 20);
        for encoding in ["br", "gzip, zstd", "gzip gzip"] {
            let result = through(&door, encoding, gzip(TEXT)).await;
            assert_eq!(
                result,
                Err(Refused::BodyEncoding {
                    found: encoding.to_owned()
                })
            );
        }
        let found = "Multipart/mixed; boundary=x";
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(found))]);
        let result = door.read(&headers, Body::from(TEXT)).await;
        assert_eq!(
            result.unwrap_err(),
            Refused::MediaType {
                found: found.to_owned()
            }
        );
    }

    #[tokio::test]
    async fn damaged_bodies_are_refused() {
        let door = door(1 << 20, 1 << 20);
        for (encoding, whole) in [
            ("gzip", gzip(TEXT)),
            ("deflate", b"\x78\x9cnot".to_vec()),
            ("zstd", zstd(TEXT)),
        ] {
            let cut = whole[..whole.len() - 1].to_vec();
            let mut flipped = whole.clone();
            flipped[0] ^= 0x40;
            for bytes in [cut, flipped, TEXT.to_vec()] {
                let result = through(&door, encoding, bytes).await;
                assert!(
                    matches!(result, Err(Refused::BodyUndecodable { .. })),
                    "{encoding}: {result:?}"
                );
            }
        }
    }

    #[tokio::test]
    async fn the_limit_holds_before_and_after_decoding() {
        let door = door(1000, 1 << 20);
        let too_big = Err(Refused::BodyTooBig {
            allowed_bytes: 1000,
        });
        assert!(through(&door, "identity", vec![b' '; 1000]).await.is_ok());
        assert_eq!(through(&door, "identity", vec![b' '; 1001]).await, too_big);
        assert!(through(&door, "gzip", gzip(&[b' '; 1000])).await.is_ok());
        for bomb in [1001, 10_000_000] {
            let text = vec![b' '; bomb];
            assert_eq!(through(&door, "gzip", gzip(&text)).await, too_big);
            assert_eq!(through(&door, "zstd", zstd(&text)).await, too_big);
        }
    }

    #[tokio::test]
    async fn bodies_share_a_room_and_give_it_back() {
        let door = door(1000, 1500);
        let first = door
            .read(&HeaderMap::new(), Body::from(vec![b' '; 1000]))
            .await
            .unwrap();
        let second = door
            .read(&HeaderMap::new(), Body::from(vec![b' '; 1000]))
            .await;
        assert_eq!(second.unwrap_err(), FULL);
        drop(first);
        assert!(
            door.read(&HeaderMap::new(), Body::from(vec![b' '; 1000]))
                .await
                .is_ok()
        );
        assert_eq!(door.room.available_permits(), 1500);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_given_up() {
        let (_sender, never) = Channel::<Bytes>::new(1);
        let result = door(1000, 1000)
            .read(&HeaderMap::new(), Body::new(never))
            .await;
        assert_eq!(result.unwrap_err(), Refused::BodySlow { waited_s: 60 });
    }
}
