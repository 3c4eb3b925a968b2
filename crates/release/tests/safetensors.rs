//! The safetensors reader: what it refuses and how it says so, what it accepts, and that nothing makes it panic. The
//! `safetensors` crate is the judge of what is valid.

#![allow(
    clippy::float_cmp,
    clippy::too_many_lines,
    clippy::unwrap_used,
    reason = "values are copied, so they are equal; a table of faults is one function; a file that cannot be written fails its test"
)]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use descant_release::safetensors::{SafetensorsFile, write_f32};
use descant_release::{Dtype, FileFault, LoadError};
use proptest::prelude::*;
use tempfile::TempDir;

/// A file of a header and `data` bytes of data.
fn file_of(header: &str, data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend((0..data).map(|i| i as u8));
    file
}

/// Reads bytes as a file that is part of the program.
fn read(bytes: &[u8]) -> Result<SafetensorsFile, LoadError> {
    SafetensorsFile::from_static("x.safetensors", bytes.to_vec().leak())
}

/// A header of one tensor.
fn one(dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#"{{"a":{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}}}"#)
}

/// A header with a member after the tensor `a` of 4 bytes.
fn with_second(member: &str) -> String {
    format!(r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},{member}}}"#)
}

/// Name, file, and what the message must say.
fn malformed() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let deep = format!("{{\"a\":{}", "[".repeat(100_000));
    let many: String = (0..=100_000)
        .map(|i| format!(r#""{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}},"#))
        .collect();
    let many = format!("{{{}}}", many.trim_end_matches(','));
    let length = |length: u64| [length.to_le_bytes().as_slice(), b"{}"].concat();
    let text = |header: &str, data| file_of(header, data);
    let u8s = |shape: &str, offsets: &str| one("\"U8\"", shape, offsets);
    let mut cases = vec![
        ("no bytes", vec![], "0 bytes"),
        ("seven bytes", vec![2; 7], "7 bytes"),
        (
            "a length alone",
            2_u64.to_le_bytes().to_vec(),
            "should have 2 bytes",
        ),
        ("a header of no bytes", length(0), "10 or more"),
        ("a header of one byte", length(1), "10 or more"),
        ("a header past the end", length(3), "should have 3 bytes"),
        (
            "a header past the cap",
            length((8 << 20) + 1),
            "8388608 are read at most",
        ),
        (
            "a header of 2^60 bytes",
            length(1 << 60),
            "8388608 are read at most",
        ),
        (
            "a header of 2^64-1 bytes",
            length(u64::MAX),
            "8388608 are read at most",
        ),
        (
            "a GGUF file",
            [b"GGUF\x03\0\0\0".as_slice(), &[0; 99]].concat(),
            "no safetensors file",
        ),
        (
            "a pickle in a zip",
            b"PK\x03\x04aaaaaaaaaaaaaaaa".to_vec(),
            "no safetensors file",
        ),
        (
            "a cut header",
            text(&u8s("[4]", "[0,4]")[..30], 4),
            "is the end, wanted `,` or `}`",
        ),
        (
            "a header that is no UTF-8",
            [length(3), vec![0xff]].concat(),
            "not UTF-8",
        ),
        (
            "NUL padding",
            [12_u64.to_le_bytes().as_slice(), b"{}", &[0; 10]].concat(),
            "NUL bytes",
        ),
        ("a leading blank", text(" {}", 0), "wanted an object"),
        ("a list", text("[]", 0), "wanted an object"),
        ("a string", text("\"ab\"", 0), "wanted an object"),
        (
            "text after the object",
            text("{}{}", 0),
            "wanted the header's end",
        ),
        ("deep nesting", text(&deep, 0), "wanted an object"),
        (
            "a comma too many",
            text("{\"__metadata__\":{},}", 0),
            "wanted a string",
        ),
        ("no colon", text("{\"a\" 1}", 0), "wanted `:`"),
        (
            "a number for a tensor",
            text("{\"a\":1}", 0),
            "wanted an object",
        ),
        (
            "null for a tensor",
            text("{\"a\":null}", 0),
            "wanted an object",
        ),
        (
            "a list for a tensor",
            text("{\"a\":[\"U8\",[4],[0,4]]}", 4),
            "wanted an object",
        ),
        (
            "metadata that is a list",
            text("{\"__metadata__\":[]}", 0),
            "wanted an object",
        ),
        (
            "metadata of numbers",
            text("{\"__metadata__\":{\"a\":1}}", 0),
            "wanted a string",
        ),
        (
            "metadata twice",
            text("{\"__metadata__\":{},\"__metadata__\":{}}", 0),
            "stands twice",
        ),
        (
            "no dtype",
            text("{\"a\":{\"shape\":[4],\"data_offsets\":[0,4]}}", 4),
            "dtype, shape and data_offsets",
        ),
        (
            "no shape",
            text("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,4]}}", 4),
            "dtype, shape and",
        ),
        (
            "no offsets",
            text("{\"a\":{\"dtype\":\"U8\",\"shape\":[4]}}", 4),
            "dtype, shape and",
        ),
        (
            "an unknown key",
            text(&one("\"U8\"", "[4],\"x\":1", "[0,4]"), 4),
            "unknown key \"x\"",
        ),
        (
            "a key twice",
            text(&one("\"U8\"", "[4],\"shape\":[4]", "[0,4]"), 4),
            "stands twice",
        ),
        (
            "an unknown dtype",
            text(&one("\"BF15\"", "[4]", "[0,4]"), 4),
            "unknown dtype \"BF15\"",
        ),
        (
            "a dtype in small letters",
            text(&one("\"u8\"", "[4]", "[0,4]"), 4),
            "unknown dtype",
        ),
        (
            "a dtype that is a number",
            text(&one("8", "[4]", "[0,4]"), 4),
            "wanted a string",
        ),
        (
            "a string that does not end",
            text("{\"a", 0),
            "a string that ends",
        ),
        ("a bad escape", text("{\"\\x\":1}", 0), "valid JSON"),
        (
            "half a surrogate pair",
            text("{\"\\ud800\":1}", 0),
            "valid JSON",
        ),
        (
            "a line feed in a name",
            text("{\"a\nb\":1}", 0),
            "valid JSON",
        ),
        (
            "a shape that is a number",
            text(&u8s("4", "[0,4]"), 4),
            "wanted an array",
        ),
        (
            "a negative dimension",
            text(&u8s("[-4]", "[0,4]"), 4),
            "whole number",
        ),
        (
            "a dimension with a fraction",
            text(&u8s("[4.0]", "[0,4]"), 4),
            "whole number",
        ),
        (
            "a dimension with an exponent",
            text(&u8s("[4e0]", "[0,4]"), 4),
            "whole number",
        ),
        (
            "a dimension in quotes",
            text(&u8s("[\"4\"]", "[0,4]"), 4),
            "whole number",
        ),
        (
            "a dimension with a leading zero",
            text(&u8s("[04]", "[0,4]"), 4),
            "whole number",
        ),
        (
            "a dimension past 2^64",
            text(&u8s("[18446744073709551616]", "[0,4]"), 4),
            "whole number",
        ),
        (
            "nine dimensions",
            text(&u8s("[1,1,1,1,1,1,1,1,4]", "[0,4]"), 4),
            "more than 8",
        ),
        (
            "a product past 2^64",
            text(&u8s("[4294967296,4294967296]", "[0,4]"), 4),
            "does not fit",
        ),
        (
            "a product of bits past 2^64",
            text(&one("\"F64\"", "[1152921504606846976]", "[0,4]"), 4),
            "does not fit",
        ),
        (
            "one offset",
            text(&u8s("[4]", "[4]"), 4),
            "two data_offsets",
        ),
        (
            "three offsets",
            text(&u8s("[4]", "[0,4,4]"), 4),
            "two data_offsets",
        ),
        (
            "an offset that is negative",
            text(&u8s("[4]", "[-1,3]"), 4),
            "whole number",
        ),
        (
            "offsets in the wrong order",
            text(&u8s("[4]", "[4,0]"), 4),
            "ends before",
        ),
        (
            "an end past the file",
            text(&u8s("[5]", "[0,5]"), 4),
            "ends at byte 5",
        ),
        (
            "an end of 2^64-1",
            text(&u8s("[5]", "[0,18446744073709551615]"), 4),
            "ends at byte",
        ),
        (
            "more bytes than the shape",
            text(&u8s("[3]", "[0,4]"), 4),
            "give 3",
        ),
        (
            "fewer bytes than the shape",
            text(&u8s("[5]", "[0,4]"), 4),
            "give 5",
        ),
        (
            "half a byte",
            text(&one("\"F4\"", "[7]", "[0,4]"), 4),
            "whole bytes",
        ),
        (
            "bytes before the first tensor",
            text(&u8s("[3]", "[1,4]"), 4),
            "bytes 0..1",
        ),
        (
            "trailing bytes",
            text(&u8s("[3]", "[0,3]"), 4),
            "1 bytes after",
        ),
        ("data without a tensor", text("{}", 4), "4 bytes after"),
        (
            "no name",
            text(
                "{\"\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
                4,
            ),
            "empty name",
        ),
        (
            "too many tensors",
            text(&many, 0),
            "more than 100000 tensors",
        ),
    ];
    for (name, member, data, wanted) in [
        (
            "an overlap",
            r#""b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}"#,
            6,
            "a and b share bytes",
        ),
        (
            "an alias",
            r#""b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}"#,
            4,
            "a and b share bytes",
        ),
        (
            "a tensor inside another",
            r#""b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}"#,
            4,
            "share bytes",
        ),
        (
            "a hole",
            r#""b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}"#,
            9,
            "bytes 4..5 of the data, before b",
        ),
        (
            "a name twice",
            r#""a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}"#,
            8,
            "\"a\" stands twice",
        ),
        (
            "one tensor twice",
            r#""a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}"#,
            4,
            "\"a\" stands twice",
        ),
        (
            "an escaped name twice",
            r#""\u0061":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}"#,
            8,
            "stands twice",
        ),
    ] {
        cases.push((name, file_of(&with_second(member), data), wanted));
    }
    cases
}

#[test]
fn every_malformed_kind_is_refused_in_words() {
    let cases = malformed();
    assert!(cases.len() >= 40);
    let wrong = |(name, bytes, wanted): (&str, Vec<u8>, &str)| match read(&bytes) {
        Err(error @ LoadError::Format { .. }) => {
            let message = error.to_string();
            let right = message.starts_with("x.safetensors: ") && message.contains(wanted);
            (!right).then(|| format!("{name}: {message}"))
        }
        other => Some(format!("{name}: {other:?}")),
    };
    let wrong: Vec<_> = cases.into_iter().filter_map(wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_a_writer_may_write_is_read() {
    let kept = [
        ("no tensor", file_of("{}", 0)),
        ("blanks at the end", file_of("{}      ", 0)),
        (
            "metadata",
            file_of(&with_second(r#""__metadata__":{"format":"pt"}"#), 4),
        ),
        (
            "a tensor without values",
            file_of(&one("\"F32\"", "[0,7]", "[0,0]"), 0),
        ),
        (
            "keys in another order",
            file_of(
                r#"{"a":{"data_offsets":[0,4],"shape":[1],"dtype":"F32"}}"#,
                4,
            ),
        ),
        ("four bits each", file_of(&one("\"F4\"", "[8]", "[0,4]"), 4)),
    ];
    for (name, bytes) in kept {
        read(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let scalar = read(&file_of(&one("\"F32\"", "[]", "[0,4]"), 4)).unwrap();
    assert_eq!(scalar.tensor("a").unwrap().len(), 1);
}

/// A file whose tensors start at odd bytes: 5 bytes of U8, then BF16, F16 and F32.
fn unaligned() -> Vec<u8> {
    let header = r#"{"u":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},"b":{"dtype":"BF16","shape":[3],"data_offsets":[5,11]},"h":{"dtype":"F16","shape":[3],"data_offsets":[11,17]},"f":{"dtype":"F32","shape":[3],"data_offsets":[17,29]}}"#;
    let mut file = file_of(header, 5);
    file.extend(
        [0x3f80_u16, 0xc020, 0x0001]
            .iter()
            .flat_map(|v| v.to_le_bytes()),
    );
    file.extend(
        [0x3c00_u16, 0xc100, 0x0001]
            .iter()
            .flat_map(|v| v.to_le_bytes()),
    );
    // The last two lie exactly between two bf16 values and go to the even one: up, then down.
    file.extend(
        [
            1.0_f32,
            f32::from_bits(0x3f81_8000),
            f32::from_bits(0x3f80_8000),
        ]
        .iter()
        .flat_map(|v| v.to_le_bytes()),
    );
    file
}

#[test]
fn values_are_read_from_any_alignment_and_rounded_to_even() {
    let bytes = unaligned();
    // Shift the whole file too, so that both parities of the address occur.
    for shift in 0..4 {
        let shifted: &'static [u8] = [vec![0; shift], bytes.clone()].concat().leak();
        let file = SafetensorsFile::from_static("x", &shifted[shift..]).unwrap();
        let f32s = |name| file.tensor(name).unwrap().to_f32().unwrap();
        let bf16s = |name| file.tensor(name).unwrap().to_bf16().unwrap();
        assert_eq!(
            f32s("b").map_bits(),
            [0x3f80_0000, 0xc020_0000, 0x0001_0000]
        );
        assert_eq!(f32s("h"), [1.0, -2.5, 2.0_f32.powi(-24)]);
        assert_eq!(
            f32s("f").map_bits(),
            [0x3f80_0000, 0x3f81_8000, 0x3f80_8000]
        );
        assert_eq!(bf16s("b"), [0x3f80, 0xc020, 0x0001]);
        assert_eq!(bf16s("h"), [0x3f80, 0xc020, 0x3380]);
        assert_eq!(bf16s("f"), [0x3f80, 0x3f82, 0x3f80]);
    }
}

trait MapBits {
    fn map_bits(&self) -> Vec<u32>;
}

impl MapBits for Vec<f32> {
    fn map_bits(&self) -> Vec<u32> {
        self.iter().map(|value| value.to_bits()).collect()
    }
}

#[test]
fn rows_are_read_alone() {
    let mut file = Vec::new();
    let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
    write_f32(&mut file, "m", &[4, 3], &values).unwrap();
    let file = read(&file).unwrap();
    let tensor = file.tensor("m").unwrap();
    let mut rows = [0.0; 6];
    tensor.copy_rows_f32_into(1..3, &mut rows);
    assert_eq!(rows, values[3..9]);
    assert_eq!((tensor.row_len(), tensor.row_bytes(3..4).len()), (3, 12));
}

#[test]
fn a_written_file_is_read_by_the_crate_of_the_format() {
    let values: Vec<f32> = (0..10_000).map(|i| (i as f32).sin()).collect();
    let mut file = Vec::new();
    write_f32(&mut file, "hidden \"x\"", &[100, 100], &values).unwrap();
    let judge = safetensors::SafeTensors::deserialize(&file).unwrap();
    let view = judge.tensor("hidden \"x\"").unwrap();
    assert_eq!(
        (view.shape(), view.dtype()),
        ([100, 100].as_slice(), safetensors::Dtype::F32)
    );
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    assert_eq!(view.data(), bytes);
}

/// Compares a file that both accept, tensor by tensor.
fn assert_same(ours: &SafetensorsFile, judge: &safetensors::SafeTensors<'_>) {
    assert_eq!(ours.len(), judge.len());
    for tensor in ours.tensors() {
        let view = judge.tensor(tensor.name).unwrap();
        assert_eq!(
            (tensor.shape, tensor.bytes),
            (view.shape(), view.data()),
            "{}",
            tensor.name
        );
        assert_eq!(tensor.dtype.name(), view.dtype().to_string());
    }
}

#[test]
fn the_fixtures_are_read_as_the_crate_reads_them() {
    let releases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/releases");
    let mut count = 0;
    for release in fs::read_dir(releases).unwrap() {
        for file in fs::read_dir(release.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            if path
                .extension()
                .is_some_and(|extension| extension == "safetensors")
            {
                let bytes = fs::read(&path).unwrap();
                let judge = safetensors::SafeTensors::deserialize(&bytes).unwrap();
                assert_same(&SafetensorsFile::open(&path).unwrap(), &judge);
                count += 1;
            }
        }
    }
    assert!(count >= 10, "{count}");
}

/// A small valid file of random tensors, as the crate writes it.
fn valid_file() -> impl Strategy<Value = Vec<u8>> {
    let dtype = prop::sample::select(vec![
        safetensors::Dtype::BF16,
        safetensors::Dtype::F32,
        safetensors::Dtype::I64,
        safetensors::Dtype::BOOL,
        safetensors::Dtype::F8_E4M3,
    ]);
    let tensor = (dtype, prop::collection::vec(0_usize..4, 0..5));
    prop::collection::btree_map("[a-z.\"\\\\é]{1,8}", tensor, 0..6).prop_map(|tensors| {
        let bytes: Vec<Vec<u8>> = tensors
            .values()
            .map(|(dtype, shape)| {
                let size = shape.iter().product::<usize>() * dtype.bitsize() / 8;
                (0..size).map(|i| i as u8).collect()
            })
            .collect();
        let views = tensors
            .iter()
            .zip(&bytes)
            .map(|((name, (dtype, shape)), bytes)| {
                let view = safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes);
                (name.clone(), view.expect("the size fits"))
            });
        safetensors::serialize(views, None).expect("a valid file")
    })
}

/// A change to a file.
#[derive(Clone, Debug)]
enum Change {
    Byte(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Digit(prop::sample::Index, u8),
    Double(prop::sample::Index, usize),
    Grow(u8),
    Remove(prop::sample::Index, usize),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        any::<prop::sample::Index>().prop_map(Change::Cut),
        (any::<prop::sample::Index>(), b'0'..=b'9')
            .prop_map(|(at, digit)| Change::Digit(at, digit)),
        (any::<prop::sample::Index>(), 1_usize..60).prop_map(|(at, size)| Change::Double(at, size)),
        any::<u8>().prop_map(Change::Grow),
        (any::<prop::sample::Index>(), 1_usize..20).prop_map(|(at, size)| Change::Remove(at, size)),
    ]
}

/// Applies a change and, mostly, mends the header's length, so that the change reaches what lies behind that check.
fn apply(file: &mut Vec<u8>, change: &Change, mend: bool) {
    if file.is_empty() {
        return;
    }
    let before = file.len();
    let mut in_header = true;
    match change {
        Change::Byte(at, byte) => *at.get_mut(file) = *byte,
        Change::Cut(at) => file.truncate(at.index(before)),
        Change::Digit(at, digit) => {
            let digits: Vec<_> = (8..before).filter(|i| file[*i].is_ascii_digit()).collect();
            if !digits.is_empty() {
                file[*at.get(&digits)] = *digit;
            }
        }
        Change::Double(at, size) => {
            let at = at.index(before);
            let part = file[at..before.min(at + size)].to_vec();
            file.splice(at..at, part);
        }
        Change::Grow(byte) => {
            file.push(*byte);
            in_header = false;
        }
        Change::Remove(at, size) => {
            let at = at.index(before);
            file.drain(at..before.min(at + size));
        }
    }
    if mend && in_header && file.len() >= 8 {
        let length = u64::from_le_bytes(file[..8].try_into().expect("eight bytes"));
        let length = length.wrapping_add_signed(file.len() as i64 - before as i64);
        file[..8].copy_from_slice(&length.to_le_bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    /// Valid files read alike. Of damaged ones, none makes the reader panic, and what it accepts the crate accepts too,
    /// with the same content; so the reader is the stricter of the two.
    #[test]
    fn no_damage_is_read_that_the_crate_refuses(
        file in valid_file(),
        changes in prop::collection::vec((change(), prop::bool::weighted(0.8)), 0..4),
    ) {
        let mut damaged = file.clone();
        for (change, mend) in &changes {
            apply(&mut damaged, change, *mend);
        }
        let ours = read(&damaged);
        let judge = safetensors::SafeTensors::deserialize(&damaged);
        match (&ours, &judge) {
            (Ok(ours), Ok(judge)) => assert_same(ours, judge),
            (Ok(_), Err(error)) => prop_assert!(false, "we accept, the crate says {error}"),
            (Err(error), Ok(_)) => prop_assert!(damaged != file, "we refuse a valid file: {error}"),
            (Err(_), Err(_)) => {}
        }
    }

    /// Bytes of no form at all.
    #[test]
    fn noise_is_refused(noise in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(read(&noise).is_err());
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let whole = unaligned();
    for length in 0..whole.len() {
        assert!(read(&whole[..length]).is_err(), "{length}");
    }
    read(&whole).unwrap();
}

#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_an_error_and_no_wait() {
    use std::os::unix::fs::symlink;
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("directory")).unwrap();
    File::create(at("empty")).unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(at("fifo"))
            .status()
            .unwrap()
            .success()
    );
    symlink("nowhere", at("dangling")).unwrap();
    symlink("fifo", at("to-fifo")).unwrap();
    symlink("loop", at("loop")).unwrap();
    for (name, wanted) in [
        ("directory", "is a directory, wanted a regular file"),
        ("empty", "is empty"),
        ("fifo", "is a FIFO, wanted a regular file"),
        ("to-fifo", "is a FIFO, wanted a regular file"),
        ("dangling", "is a link to nowhere, which does not exist"),
        ("absent", "does not exist"),
        ("loop", "cannot be read"),
    ] {
        let error = SafetensorsFile::open(&at(name)).unwrap_err().to_string();
        assert!(
            error.contains(wanted) && error.contains(name),
            "{name}: {error}"
        );
    }
    fs::write(at("real"), unaligned()).unwrap();
    symlink("real", at("link")).unwrap();
    SafetensorsFile::open(&at("link")).unwrap();
}

/// Name of the variable that makes the test below play the part of the process with little memory.
const LITTLE_MEMORY: &str = "DESCANT_TEST_LITTLE_MEMORY";

#[cfg(target_os = "linux")]
#[test]
fn a_buffer_that_does_not_fit_is_an_error() {
    if let Some(folder) = std::env::var_os(LITTLE_MEMORY) {
        return in_little_memory(Path::new(&folder));
    }
    // Sparse files: they take no room on disk.
    let folder = TempDir::new().unwrap();
    for (name, values) in [("mapped", 200_u64 << 20), ("unmappable", 2 << 30)] {
        let bytes = values * 2;
        let header = one("\"BF16\"", &format!("[{values}]"), &format!("[0,{bytes}]"));
        let path = folder.path().join(name);
        fs::write(&path, file_of(&header, 0)).unwrap();
        let length = 8 + header.len() as u64 + bytes;
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(length)
            .unwrap();
    }
    let own = std::env::current_exe().unwrap();
    let output = Command::new("sh")
        .args([
            "-c",
            "ulimit -v 1000000; exec \"$0\" --exact a_buffer_that_does_not_fit_is_an_error",
        ])
        .arg(own)
        .env(LITTLE_MEMORY, folder.path())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[cfg(target_os = "linux")]
fn in_little_memory(folder: &Path) {
    let file = SafetensorsFile::open(&folder.join("mapped")).expect("400 MiB fit");
    // 800 MiB beside the 400 MiB of the map do not fit in 976 MiB.
    let error = file
        .tensor("a")
        .expect("it is there")
        .to_f32()
        .expect_err("too much");
    assert!(
        matches!(error, LoadError::Memory { bytes, .. } if bytes == 800 << 20),
        "{error}"
    );
    assert!(error.to_string().contains("838860800 bytes"), "{error}");
    let path: PathBuf = folder.join("unmappable");
    let error = SafetensorsFile::open(&path).expect_err("4 GiB do not fit");
    assert!(
        matches!(
            error,
            LoadError::File {
                fault: FileFault::Io(_),
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn pages_given_back_are_read_again() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("x.safetensors");
    fs::write(&path, unaligned()).unwrap();
    let file = SafetensorsFile::open(&path).unwrap();
    let before = file.tensor("f").unwrap().to_f32().unwrap();
    file.discard_pages();
    assert_eq!(
        file.tensor("f").unwrap().to_f32().unwrap().map_bits(),
        before.map_bits()
    );
}

#[test]
fn only_the_three_dtypes_of_weights_are_weights() {
    let file = read(&unaligned()).unwrap();
    let weights: Vec<_> = file
        .tensors()
        .filter(|tensor| tensor.dtype.is_weight())
        .map(|t| t.dtype)
        .collect();
    assert_eq!(weights, [Dtype::BF16, Dtype::F32, Dtype::F16]);
}
