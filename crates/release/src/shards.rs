//! The backbone's weight files: one `model.safetensors`, or shards with an index that says which holds what.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserializer;
use serde::de::{MapAccess, Visitor};

use crate::error::{FileFault, LoadError};
use crate::safetensors::SafetensorsFile;
use crate::source::Source;

/// A backbone in one file.
pub(crate) const SINGLE: &str = "model.safetensors";
/// The index of a backbone in shards.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Opens the backbone's files and checks them against the index. Faults go to `faults`; files with faults are left out.
///
/// Where both forms are there, the single file is read, as the reference does.
pub(crate) fn open(source: &Source, faults: &mut Vec<LoadError>) -> Vec<SafetensorsFile> {
    if source.has(SINGLE) || !source.has(INDEX) {
        return open_all(source, [SINGLE], faults);
    }
    let index = match Index::read(source) {
        Ok(index) => index,
        Err(error) => {
            faults.push(error);
            return Vec::new();
        }
    };
    let files = open_all(source, index.shards.keys().map(String::as_str), faults);
    for file in &files {
        index.check(file, faults);
    }
    files
}

fn open_all<'a>(
    source: &Source,
    names: impl IntoIterator<Item = &'a str>,
    faults: &mut Vec<LoadError>,
) -> Vec<SafetensorsFile> {
    let open = |name| {
        SafetensorsFile::from_source(source, name)
            .map_err(|error| faults.push(error))
            .ok()
    };
    names.into_iter().filter_map(open).collect()
}

/// `model.safetensors.index.json`.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Names of the tensors of each shard.
    pub(crate) shards: BTreeMap<String, Vec<String>>,
    /// The shard of each tensor.
    places: BTreeMap<String, String>,
}

impl Index {
    fn read(source: &Source) -> Result<Index, LoadError> {
        let text = source.text(INDEX, INDEX_BYTES_MAX)?;
        let index = Index::parse(&text).map_err(|error| LoadError::Json {
            file: source.path(INDEX),
            source: error,
        })?;
        match index.shards.is_empty() {
            true => Err(LoadError::File {
                file: source.path(INDEX),
                fault: FileFault::Empty,
            }),
            false => Ok(index),
        }
    }

    /// Parses an index. A tensor named twice and a shard outside the directory are errors.
    pub(crate) fn parse(text: &str) -> Result<Index, serde_json::Error> {
        let mut parser = serde_json::Deserializer::from_str(text);
        let index = parser.deserialize_map(IndexVisitor)?;
        parser.end()?;
        Ok(index)
    }

    /// Checks that a shard holds what the index says, and nothing else.
    fn check(&self, file: &SafetensorsFile, faults: &mut Vec<LoadError>) {
        let shard = file
            .path()
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let expected = self
            .shards
            .get(shard)
            .map(Vec::as_slice)
            .unwrap_or_default();
        for name in expected.iter().filter(|name| file.tensor(name).is_none()) {
            faults.push(LoadError::IndexTensorMissing {
                file: file.path().to_path_buf(),
                name: name.clone(),
            });
        }
        for tensor in file.tensors() {
            let indexed = self.places.get(tensor.name);
            if indexed.is_none_or(|indexed| indexed != shard) {
                faults.push(LoadError::IndexDisagrees {
                    file: file.path().to_path_buf(),
                    name: tensor.name.to_owned(),
                    indexed: indexed.cloned(),
                });
            }
        }
    }

    fn insert(&mut self, tensor: String, shard: String) -> Result<(), String> {
        // A shard lies beside the index: its name is followed into the file system and into URLs.
        let plain = !shard.contains(['/', '\\', '\0', ':']) && !shard.starts_with('.');
        if !plain || !shard.ends_with(".safetensors") {
            return Err(format!(
                "{shard:?} is no name of a safetensors file beside the index"
            ));
        }
        if !self.shards.contains_key(&shard) && self.shards.len() == SHARDS_MAX {
            return Err(format!("there are more than {SHARDS_MAX} shards"));
        }
        if self.places.insert(tensor.clone(), shard.clone()).is_some() {
            return Err(format!("{tensor:?} stands twice in weight_map"));
        }
        self.shards.entry(shard).or_default().push(tensor);
        Ok(())
    }
}

/// Reads `{"metadata": …, "weight_map": {…}}`; a plain `Value` would keep one of two equal keys in silence.
struct IndexVisitor;

impl<'de> Visitor<'de> for IndexVisitor {
    type Value = Index;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with weight_map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Index, A::Error> {
        let mut index = None;
        while let Some(key) = map.next_key::<String>()? {
            if key != "weight_map" {
                map.next_value::<serde::de::IgnoredAny>()?;
            } else if index.is_none() {
                index = Some(map.next_value::<WeightMap>()?.0);
            } else {
                return Err(serde::de::Error::duplicate_field("weight_map"));
            }
        }
        index.ok_or_else(|| serde::de::Error::missing_field("weight_map"))
    }
}

/// The shard's name by the tensor's.
struct WeightMap(Index);

impl<'de> serde::Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WeightMap, D::Error> {
        deserializer.deserialize_map(WeightMapVisitor)
    }
}

struct WeightMapVisitor;

impl<'de> Visitor<'de> for WeightMapVisitor {
    type Value = WeightMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of shard names by tensor name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
        let mut index = Index::default();
        while let Some((tensor, shard)) = map.next_entry::<String, String>()? {
            index
                .insert(tensor, shard)
                .map_err(serde::de::Error::custom)?;
        }
        Ok(WeightMap(index))
    }
}

/// Greatest size of an index.
pub(crate) const INDEX_BYTES_MAX: u64 = 16 << 20;
/// Greatest number of shards.
const SHARDS_MAX: usize = 1000;
