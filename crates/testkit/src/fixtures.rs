//! The fixtures: where they are, and how their files are read.
//!
//! `DESCANT_FIXTURES` names the folder where a test binary runs without its source tree; else it is `fixtures/` at
//! the repository's root. `fixtures/README.md` describes every file.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use descant_release::safetensors::SafetensorsFile;
use flate2::read::GzDecoder;
use serde_json::Value;

/// Names of the tiny releases under `fixtures/releases`.
pub const RELEASES: [&str; 3] = ["tiny-a", "tiny-b", "tiny-tied"];

/// The path of a fixture, given from the fixtures' folder on.
pub fn path(name: &str) -> PathBuf {
    let folder = std::env::var_os("DESCANT_FIXTURES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures"),
        PathBuf::from,
    );
    folder.join(name)
}

/// The folder of a release under `fixtures/releases`.
pub fn release(name: &str) -> PathBuf {
    path("releases").join(name)
}

/// A fixture's bytes, unpacked if its name ends in `.gz`.
///
/// # Panics
/// If the file cannot be read.
pub fn bytes(name: &str) -> Vec<u8> {
    let path = path(name);
    let packed = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if !name.ends_with(".gz") {
        return packed;
    }
    let mut unpacked = Vec::new();
    let read = GzDecoder::new(packed.as_slice()).read_to_end(&mut unpacked);
    read.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    unpacked
}

/// A fixture's JSON value.
///
/// # Panics
/// If the file cannot be read or is no JSON.
pub fn json(name: &str) -> Value {
    serde_json::from_slice(&bytes(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A fixture's JSON values, one a line.
///
/// # Panics
/// If the file cannot be read, has no line, or a line is no JSON.
pub fn jsonl(name: &str) -> Vec<Value> {
    let text = String::from_utf8(bytes(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let parse = |(index, line)| {
        serde_json::from_str(line)
            .unwrap_or_else(|error| panic!("{name}, line {}: {error}", index + 1))
    };
    let values: Vec<Value> = text.lines().enumerate().map(parse).collect();
    assert!(!values.is_empty(), "{name} has no lines");
    values
}

/// A fixture's safetensors file.
///
/// # Panics
/// If the file cannot be read or breaks the format.
pub fn tensors(name: &str) -> SafetensorsFile {
    SafetensorsFile::open(&path(name)).unwrap_or_else(|error| panic!("{error}"))
}

/// A tensor of a safetensors file as f32.
///
/// # Panics
/// If the file has no such tensor or its dtype is none of BF16, F16 and F32.
pub fn tensor(file: &SafetensorsFile, name: &str) -> Vec<f32> {
    let Some(tensor) = file.tensor(name) else {
        panic!("{}: no tensor {name}", file.path().display())
    };
    tensor.to_f32().unwrap_or_else(|error| panic!("{error}"))
}

/// An array of whole numbers, such as token ids.
///
/// # Panics
/// If the value is no such array or a number does not fit.
pub fn integers<T: TryFrom<u64>>(value: &Value) -> Vec<T> {
    let integer = |value: &Value| value.as_u64().and_then(|number| T::try_from(number).ok());
    let numbers = value
        .as_array()
        .and_then(|values| values.iter().map(integer).collect());
    numbers.unwrap_or_else(|| panic!("wanted an array of whole numbers, found {value}"))
}

/// An array of numbers.
///
/// # Panics
/// If the value is no such array.
pub fn numbers(value: &Value) -> Vec<f64> {
    let numbers = value
        .as_array()
        .and_then(|values| values.iter().map(Value::as_f64).collect());
    numbers.unwrap_or_else(|| panic!("wanted an array of numbers, found {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gzipped_fixture_is_unpacked() {
        let records = jsonl("golden/encode/tiny-a.jsonl.gz");
        assert!(records.iter().all(|record| record["name"].is_string()));
    }

    #[test]
    fn hidden_rows_are_read() {
        let file = tensors("golden/hidden/tiny-a.safetensors");
        assert_eq!(tensor(&file, "hidden.3").len(), 3 * 64);
        let prompts = json("golden/hidden/tiny-a.json")["prompts"].clone();
        assert_eq!(integers::<u32>(&prompts[2]["ids"]).len(), 3);
    }

    #[test]
    #[should_panic(expected = "golden/nothing.json")]
    fn a_missing_fixture_is_named() {
        json("golden/nothing.json");
    }
}
