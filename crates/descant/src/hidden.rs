//! `descant hidden`: the final hidden rows of a sequence of token ids.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use descant_engine::{HiddenStream, JobOptions};

use crate::args::Hidden;
use crate::backend::Room;
use crate::failure::Failure;
use crate::input;
use crate::load::{self, Loaded};

/// Rows of a piece where none are asked for.
const PIECE_ROWS: usize = 1024;

pub(crate) fn run(args: &Hidden) -> Result<(), Failure> {
    let place = load::place(args.model.model.as_deref())?;
    let release = place.release(args.model.clef.clef.as_deref())?;
    let hidden = release.config().hidden;
    let ids = input::token_ids(&args.ids, release.config().vocab)?;
    let shape = [ids.len(), hidden];
    let loaded = Loaded::new(
        release,
        &args.compute,
        Room::for_one(ids.len()),
        &load::settings_alone(),
    )?;
    let piece_rows = args.piece.unwrap_or(PIECE_ROWS);
    let rows = loaded
        .engine
        .handle()
        .hidden(ids, piece_rows, &JobOptions::default())?;
    let done = write_rows(&args.out, shape, rows);
    loaded.engine.shutdown(load::ENGINE_STOP);
    done
}

/// Writes the rows as they come, and puts the file in its place when it is whole.
fn write_rows(out: &Path, shape: [usize; 2], mut rows: HiddenStream) -> Result<(), Failure> {
    let partial = Partial::create(out)?;
    let failed = |source| Failure::Write {
        file: out.to_path_buf(),
        source,
    };
    let mut writer = BufWriter::new(&partial.file);
    writer.write_all(&safetensors_head(shape)).map_err(failed)?;
    while let Some(piece) = rows.wait_next() {
        write_f32(&mut writer, &piece?.rows).map_err(failed)?;
    }
    writer.flush().map_err(failed)?;
    drop(writer);
    partial.keep(out)
}

/// The header of a safetensors file that holds one tensor `hidden`, padded so that the values stand at a multiple of
/// eight bytes.
fn safetensors_head([rows, width]: [usize; 2]) -> Vec<u8> {
    let bytes = rows * width * size_of::<f32>();
    let mut json = format!(
        r#"{{"hidden":{{"dtype":"F32","shape":[{rows},{width}],"data_offsets":[0,{bytes}]}}}}"#
    );
    json.push_str(&" ".repeat(json.len().next_multiple_of(8) - json.len()));
    [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat()
}

fn write_f32(writer: &mut impl Write, values: &[f32]) -> io::Result<()> {
    values
        .iter()
        .try_for_each(|value| writer.write_all(&value.to_le_bytes()))
}

/// A file that is not whole yet, beside the one it will be. Removed unless it is kept.
struct Partial {
    file: File,
    path: Option<PathBuf>,
}

impl Partial {
    fn create(out: &Path) -> Result<Partial, Failure> {
        let mut name = out.as_os_str().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let path = PathBuf::from(name);
        match File::create(&path) {
            Ok(file) => Ok(Partial {
                file,
                path: Some(path),
            }),
            Err(source) => Err(Failure::Write {
                file: out.to_path_buf(),
                source,
            }),
        }
    }

    fn keep(mut self, out: &Path) -> Result<(), Failure> {
        let path = self.path.take().expect("a partial file is kept once");
        fs::rename(&path, out).map_err(|source| {
            let _ = fs::remove_file(&path);
            Failure::Write {
                file: out.to_path_buf(),
                source,
            }
        })
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_at_a_multiple_of_eight_bytes() {
        for shape in [[1, 8], [16_384, 4096], [7, 123]] {
            let head = safetensors_head(shape);
            assert!(head.len().is_multiple_of(8), "{shape:?}");
            let length = u64::from_le_bytes(head[..8].try_into().unwrap());
            assert_eq!(length as usize, head.len() - 8);
            let header: serde_json::Value = serde_json::from_slice(&head[8..]).unwrap();
            assert_eq!(header["hidden"]["data_offsets"][1], shape[0] * shape[1] * 4);
        }
    }
}
