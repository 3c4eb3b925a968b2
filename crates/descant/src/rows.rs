//! Requests from the rows of a Parquet file.
//!
//! A file has either a column `request`, each cell what a line of JSON Lines would be, or a column `questions` (JSON text)
//! beside `state` (text, taken as it is) or `state_json` (JSON text). `state` is JSON text too where the file marks it as
//! JSON. A null is JSON's null. What is wrong with a row is told in its place; what is wrong with the file ends the run.
//!
//! Columns are strings at the top level of the schema, in any encoding, plain or compressed with snappy, zstd or gzip; other
//! columns are not read. Rows come in the file's order; a page of each column is held at a time.

use std::collections::VecDeque;
use std::fs::File;

use descant_decision::json::{Object, parse, to_json};
use descant_decision::{Fault, FaultKind, Step, Value};
use descant_server::Refused;
use parquet::basic::{Compression, ConvertedType, Type};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor};

use crate::input::{Line, REQUEST_BYTES_MAX};

/// Cells of a column that are decoded at a time.
const CELLS_AT_A_TIME: usize = 64;

/// The rows of a file, one after the other.
pub(crate) struct Rows {
    reader: SerializedFileReader<File>,
    columns: Vec<Column>,
    /// Row groups that were opened.
    groups: usize,
    /// Rows of the open one that were not handed out.
    left: u64,
    /// The cells of the open one, column by column.
    cells: Vec<Cells>,
}

/// A column that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Column {
    /// Which of the file's.
    index: usize,
    part: Part,
    is_json: bool,
}

/// What a cell is of its row's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Questions,
    Request,
    State,
}

impl Part {
    /// Its key in a request.
    fn key(self) -> &'static str {
        match self {
            Part::Questions => "questions",
            Part::Request => "request",
            Part::State => "state",
        }
    }
}

impl Rows {
    /// Opens a file.
    ///
    /// # Errors
    /// If it is no Parquet file or has other columns, in words.
    pub(crate) fn open(file: File) -> Result<Rows, String> {
        let reader = SerializedFileReader::new(file).map_err(in_words)?;
        let columns = columns(reader.metadata().file_metadata().schema_descr())?;
        Ok(Rows {
            reader,
            columns,
            groups: 0,
            left: 0,
            cells: Vec::new(),
        })
    }

    /// How many rows the file has.
    pub(crate) fn count(&self) -> u64 {
        let groups = self.reader.metadata().row_groups().iter();
        groups.map(|group| rows_of(group.num_rows())).sum()
    }

    /// The request of the next row; nothing after the last.
    ///
    /// # Errors
    /// If the file cannot be read or decoded, in words.
    pub(crate) fn next(&mut self) -> Result<Option<Line>, String> {
        while self.left == 0 {
            if self.groups == self.reader.metadata().num_row_groups() {
                return Ok(None);
            }
            self.open_group().map_err(in_words)?;
        }
        self.left -= 1;
        let group = self.groups;
        let cells = self.cells.iter_mut().map(|cells| {
            let cell = cells.next().map_err(in_words)?;
            cell.ok_or_else(|| format!("row group {group} ends before its last row"))
        });
        let cells = cells.collect::<Result<Vec<_>, String>>()?;
        Ok(Some(line(&self.columns, &cells)))
    }

    fn open_group(&mut self) -> Result<(), ParquetError> {
        let group = self.reader.get_row_group(self.groups)?;
        let cells = self.columns.iter().map(|column| {
            let optional = group
                .metadata()
                .column(column.index)
                .column_descr()
                .max_def_level()
                > 0;
            let codec = group.metadata().column(column.index).compression();
            if !is_read(codec) {
                let fault = format!(
                    "a column is compressed with {codec:?}; snappy, zstd and gzip are read"
                );
                return Err(ParquetError::General(fault.to_lowercase()));
            }
            match group.get_column_reader(column.index)? {
                ColumnReader::ByteArrayColumnReader(reader) => Ok(Cells::new(reader, optional)),
                _ => Err(ParquetError::General(
                    "a column changes its type".to_owned(),
                )),
            }
        });
        self.cells = cells.collect::<Result<_, _>>()?;
        self.left = rows_of(group.metadata().num_rows());
        self.groups += 1;
        Ok(())
    }
}

/// The cells of a column in a row group.
struct Cells {
    reader: ColumnReaderImpl<ByteArrayType>,
    /// Whether cells can be null.
    optional: bool,
    ready: VecDeque<Option<ByteArray>>,
}

impl Cells {
    fn new(reader: ColumnReaderImpl<ByteArrayType>, optional: bool) -> Cells {
        Cells {
            reader,
            optional,
            ready: VecDeque::with_capacity(CELLS_AT_A_TIME),
        }
    }

    /// The next cell, `Some(None)` for a null; nothing after the last.
    fn next(&mut self) -> Result<Option<Option<ByteArray>>, ParquetError> {
        if self.ready.is_empty() {
            self.decode()?;
        }
        Ok(self.ready.pop_front())
    }

    fn decode(&mut self) -> Result<(), ParquetError> {
        let (mut levels, mut values) = (Vec::new(), Vec::new());
        let levels_wanted = self.optional.then_some(&mut levels);
        let (rows, ..) =
            self.reader
                .read_records(CELLS_AT_A_TIME, levels_wanted, None, &mut values)?;
        let mut values = values.into_iter();
        if !self.optional {
            self.ready.extend(values.map(Some));
            return Ok(());
        }
        if levels.len() != rows {
            return Err(ParquetError::General(
                "definition levels are missing".to_owned(),
            ));
        }
        for level in levels {
            let cell = match level {
                0 => None,
                _ => Some(
                    values
                        .next()
                        .ok_or_else(|| ParquetError::General("values are missing".to_owned()))?,
                ),
            };
            self.ready.push_back(cell);
        }
        Ok(())
    }
}

/// Whether columns of a codec are read.
fn is_read(codec: Compression) -> bool {
    matches!(
        codec,
        Compression::GZIP(_)
            | Compression::SNAPPY
            | Compression::UNCOMPRESSED
            | Compression::ZSTD(_)
    )
}

/// The columns that hold requests.
fn columns(schema: &SchemaDescriptor) -> Result<Vec<Column>, String> {
    let found = |name, part| column(schema, name, part);
    if let Some(request) = found("request", Part::Request)? {
        return Ok(vec![request]);
    }
    let questions = found("questions", Part::Questions)?;
    let state = found("state", Part::State)?;
    let state_json = found("state_json", Part::State)?.map(|column| Column {
        is_json: true,
        ..column
    });
    match (state, state_json, questions) {
        (Some(_), Some(_), _) => Err("it has both state and state_json; leave one".to_owned()),
        (Some(state), None, Some(questions)) | (None, Some(state), Some(questions)) => {
            Ok(vec![state, questions])
        }
        _ => {
            let names: Vec<&str> = schema
                .root_schema()
                .get_fields()
                .iter()
                .map(|field| field.name())
                .collect();
            Err(format!(
                "it has the columns {}; wanted request, or questions with state or state_json",
                names.join(", ")
            ))
        }
    }
}

/// A column by its name.
fn column(schema: &SchemaDescriptor, name: &str, part: Part) -> Result<Option<Column>, String> {
    let is_named = |column: &ColumnDescriptor| {
        column
            .path()
            .parts()
            .first()
            .is_some_and(|first| first == name)
    };
    let mut all = schema
        .columns()
        .iter()
        .enumerate()
        .filter(|(_, column)| is_named(column));
    let Some((index, column)) = all.next() else {
        return Ok(None);
    };
    if all.next().is_some() || !is_text(column) {
        return Err(format!("column {name} holds something else than strings"));
    }
    let is_json = part != Part::State || column.converted_type() == ConvertedType::JSON;
    Ok(Some(Column {
        index,
        part,
        is_json,
    }))
}

/// Whether a column is strings, or bytes that may be, one a row.
fn is_text(column: &ColumnDescriptor) -> bool {
    column.path().parts().len() == 1
        && column.max_rep_level() == 0
        && column.physical_type() == Type::BYTE_ARRAY
        && matches!(
            column.converted_type(),
            ConvertedType::ENUM | ConvertedType::JSON | ConvertedType::NONE | ConvertedType::UTF8
        )
}

/// The request of a row.
fn line(columns: &[Column], cells: &[Option<ByteArray>]) -> Line {
    let bytes = |cell: &Option<ByteArray>| cell.as_ref().map_or(0, ByteArray::len);
    if cells.iter().map(bytes).sum::<usize>() > REQUEST_BYTES_MAX {
        return Line::Refused(Refused::BodyTooBig {
            allowed_bytes: REQUEST_BYTES_MAX,
        });
    }
    if let ([column], [cell]) = (columns, cells)
        && column.part == Part::Request
    {
        // A blank line is passed over, a blank cell is a row and has its answer.
        let text = cell.as_ref().map_or(&b""[..], ByteArray::data);
        let is_blank = text.iter().all(u8::is_ascii_whitespace);
        return Line::Text(if is_blank {
            b"null".to_vec()
        } else {
            text.to_vec()
        });
    }
    let mut body = Object::new();
    for (column, cell) in columns.iter().zip(cells) {
        match value(*column, cell.as_ref().map(ByteArray::data)) {
            Ok(value) => body.insert(column.part.key(), value),
            Err(fault) => return Line::Refused(Refused::Faults(vec![fault])),
        };
    }
    Line::Text(to_json(&body.into()).into_bytes())
}

/// The value of a cell.
fn value(column: Column, cell: Option<&[u8]>) -> Result<Value, Fault> {
    let wrong = |msg: String| Fault {
        loc: vec![Step::key(column.part.key())],
        kind: FaultKind::JsonInvalid,
        msg,
    };
    match cell {
        None => Ok(Value::Null),
        Some(text) if column.is_json => parse(text).map_err(|error| wrong(error.to_string())),
        Some(text) => match std::str::from_utf8(text) {
            Ok(text) => Ok(text.into()),
            Err(error) => Err(wrong(format!(
                "the text is not UTF-8 (byte {})",
                error.valid_up_to()
            ))),
        },
    }
}

/// Row counts are never negative in a file that is one.
fn rows_of(rows: i64) -> u64 {
    u64::try_from(rows).unwrap_or(0)
}

fn in_words(error: ParquetError) -> String {
    match error {
        ParquetError::General(fault) => format!("not a usable Parquet file: {fault}"),
        other => format!("not a usable Parquet file: {other}"),
    }
}
