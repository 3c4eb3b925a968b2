//! A release as a whole: opened, checked against its plan, and ready to be read.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::{HeadConfig, ModelConfig};
use crate::config_files::{CONFIG, HEAD_CONFIG, read_backbone, read_head};
use crate::digest::{self, Digests, Sums};
use crate::error::{FileFault, Foreign, LoadError};
use crate::plan::{LM_HEAD, LoadPlan, Part};
use crate::safetensors::{Dtype, SafetensorsFile, Tensor};
use crate::shards;
use crate::source::{EmbeddedFiles, Source};
use crate::tokenizer::{self, Tokenizer};

/// The head's weights.
pub(crate) const HEAD_WEIGHTS: &str = "joint_head.safetensors";
/// Output rows beside a head.
pub(crate) const HEAD_ROWS: &str = "lm_head_rows.safetensors";
/// The tokenizer, complete.
pub(crate) const TOKENIZER: &str = "tokenizer.json";
/// The chat template in a file of its own.
pub(crate) const CHAT_TEMPLATE: &str = "chat_template.jinja";
/// Settings around the tokenizer; older releases keep the chat template here.
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// A checked release. Every tensor of [`Release::plan`] is there with its shape and a dtype of weights; none of their
/// values has been read.
pub struct Release {
    /// Where config, tokenizer and backbone lie.
    source: Source,
    /// Where the head's files lie.
    head_source: Source,
    config: ModelConfig,
    head: Option<HeadConfig>,
    prefix: &'static str,
    plan: LoadPlan,
    files: Vec<SafetensorsFile>,
    /// File, index in it and part of every tensor, by name. Names of backbone and head differ by their prefix.
    places: BTreeMap<String, Place>,
    /// File of [`HEAD_ROWS`]; it has one tensor.
    head_rows: Option<usize>,
    /// Bytes of the tensors that were asked for so far, for showing how far a loader is.
    touched_bytes: AtomicU64,
}

#[derive(Clone, Copy)]
struct Place {
    file: usize,
    index: usize,
    part: Part,
}

/// What a release is by its config files alone, whether its weights are there or not.
#[derive(Clone, Debug, PartialEq)]
pub struct Outline {
    /// The backbone's configuration.
    pub config: ModelConfig,
    /// The head's configuration; none if there is no head.
    pub head: Option<HeadConfig>,
    /// Every tensor that the weight files must hold.
    pub plan: LoadPlan,
    /// What stands before `layers.0.…` in the names of the text model's tensors.
    prefix: &'static str,
}

impl Outline {
    /// Of sizes alone, without files.
    pub fn new(config: ModelConfig, head: Option<HeadConfig>) -> Outline {
        Outline {
            plan: LoadPlan::new("", &config, head.as_ref()),
            config,
            head,
            prefix: "",
        }
    }

    /// Reads the config files of a directory; the head's is taken from `clef` if it is given.
    ///
    /// # Errors
    /// Everything that is wrong with the configs, at once.
    pub fn open(directory: &Path, clef: Option<&Path>) -> Result<Outline, LoadError> {
        let source = Source::Directory(directory.to_path_buf());
        let head_source = Source::Directory(clef.unwrap_or(directory).to_path_buf());
        Outline::from_sources(&source, &head_source)
    }

    fn from_sources(source: &Source, head_source: &Source) -> Result<Outline, LoadError> {
        let mut faults = Vec::new();
        let backbone = read_backbone(source, &mut faults);
        let has_head = head_source.has(HEAD_CONFIG) || head_source.has(HEAD_WEIGHTS);
        let model = backbone.as_ref().map(|backbone| &backbone.config);
        let head = match has_head {
            true => read_head(head_source, model, &mut faults),
            false => None,
        };
        LoadError::all_of(&source.place(), faults)?;
        let backbone = backbone.expect("a config that was not read left a fault");
        let plan = LoadPlan::new(backbone.prefix, &backbone.config, head.as_ref());
        Ok(Outline {
            config: backbone.config,
            head,
            plan,
            prefix: backbone.prefix,
        })
    }
}

/// What a part of a release takes on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartSize {
    /// The part.
    pub part: Part,
    /// Number of tensors.
    pub tensors: usize,
    /// Number of values.
    pub parameters: usize,
    /// Bytes of the values.
    pub weights_bytes: usize,
    /// Every dtype that occurs, sorted by name.
    pub dtypes: Vec<Dtype>,
}

/// Says that a release has no head, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadMissing {
    /// The release.
    pub place: PathBuf,
}

impl fmt::Display for HeadMissing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is a qwen3_5 backbone without a joint schema head ({HEAD_CONFIG} and {HEAD_WEIGHTS} are missing), so it \
             answers no questions; `--clef DIR` takes the head from another directory",
            self.place.display()
        )
    }
}

impl std::error::Error for HeadMissing {}

impl Release {
    /// Opens a directory; the head's files are taken from `clef` if it is given.
    ///
    /// # Errors
    /// Everything that is wrong with the configs, or else with the weight files, at once. No weight is read before all
    /// of it is in order.
    pub fn open(directory: &Path, clef: Option<&Path>) -> Result<Release, LoadError> {
        check_directory(directory)?;
        let head_source = match clef {
            Some(clef) => {
                check_head_directory(clef)?;
                Source::Directory(clef.to_path_buf())
            }
            None => Source::Directory(directory.to_path_buf()),
        };
        Release::from_sources(Source::Directory(directory.to_path_buf()), head_source)
    }

    /// Opens a release that is part of the program.
    ///
    /// # Errors
    /// As [`Release::open`].
    pub fn embedded(files: EmbeddedFiles) -> Result<Release, LoadError> {
        Release::from_sources(Source::Embedded(files), Source::Embedded(files))
    }

    fn from_sources(source: Source, head_source: Source) -> Result<Release, LoadError> {
        let Outline {
            config,
            head,
            plan,
            prefix,
        } = Outline::from_sources(&source, &head_source)?;
        let mut inventory = Inventory::default();
        inventory.add_backbone(&source, prefix);
        inventory.add_head(&head_source, head.is_some(), &config);
        inventory.check(&source, &plan);
        LoadError::all_of(&source.place(), inventory.faults)?;
        Ok(Release {
            source,
            head_source,
            config,
            head,
            prefix,
            plan,
            files: inventory.files,
            places: inventory.places,
            head_rows: inventory.head_rows,
            touched_bytes: AtomicU64::new(0),
        })
    }

    /// The backbone's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The head's configuration; none if the release has no head.
    pub fn head(&self) -> Option<&HeadConfig> {
        self.head.as_ref()
    }

    /// The head's configuration, or what to say and do without one.
    ///
    /// # Errors
    /// [`HeadMissing`].
    pub fn require_head(&self) -> Result<&HeadConfig, HeadMissing> {
        self.head.as_ref().ok_or_else(|| HeadMissing {
            place: self.place(),
        })
    }

    /// The directory, or the words `the embedded release`.
    pub fn place(&self) -> PathBuf {
        self.source.place()
    }

    /// What the release is by its config files.
    pub fn outline(&self) -> Outline {
        Outline {
            config: self.config.clone(),
            head: self.head.clone(),
            plan: self.plan.clone(),
            prefix: self.prefix,
        }
    }

    /// The plan that the release fulfils.
    pub fn plan(&self) -> &LoadPlan {
        &self.plan
    }

    /// A tensor by its full name, be it planned or not (vision tensors are there too).
    ///
    /// # Errors
    /// [`LoadError::TensorMissing`]; never for a name of the plan.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, LoadError> {
        match self.places.get(name) {
            Some(place) => {
                let tensor = self.files[place.file].at(place.index);
                self.touched_bytes
                    .fetch_add(tensor.bytes.len() as u64, Ordering::Relaxed);
                Ok(tensor)
            }
            None => Err(LoadError::TensorMissing {
                file: self.place(),
                name: name.to_owned(),
                wanted: Vec::new(),
            }),
        }
    }

    /// A tensor of the text model by its name after the prefix: `layers.0.mlp.up_proj.weight`.
    ///
    /// # Errors
    /// As [`Release::tensor`].
    pub fn backbone_tensor(&self, name: &str) -> Result<Tensor<'_>, LoadError> {
        self.tensor(&format!("{}{name}", self.prefix))
    }

    /// The token embedding, `[vocab, H]`.
    ///
    /// # Errors
    /// None on a release that was opened; see [`Release::tensor`].
    pub fn embedding(&self) -> Result<Tensor<'_>, LoadError> {
        self.backbone_tensor("embed_tokens.weight")
    }

    /// The output embedding, `[vocab, H]`, whose rows score the next token: `lm_head.weight`, or the rows beside the
    /// head where the backbone lacks it, or the token embedding where the two are tied. Nothing is loaded:
    /// [`Tensor::copy_rows_f32_into`] reads single rows.
    ///
    /// # Errors
    /// None on a release that was opened; see [`Release::tensor`].
    pub fn output_embedding(&self) -> Result<Tensor<'_>, LoadError> {
        match (self.config.tied, self.head_rows) {
            (true, _) => self.embedding(),
            (false, Some(file)) if !self.places.contains_key(LM_HEAD) => Ok(self.files[file].at(0)),
            (false, _) => self.tensor(LM_HEAD),
        }
    }

    /// The rows, `[vocab, H]`, that the head's lexical prior averages: those beside the head if there are any, else the
    /// output embedding.
    ///
    /// # Errors
    /// None on a release that was opened; see [`Release::tensor`].
    pub fn lexical_embedding(&self) -> Result<Tensor<'_>, LoadError> {
        match self.head_rows {
            Some(file) => Ok(self.files[file].at(0)),
            None => self.output_embedding(),
        }
    }

    /// Bytes of all files of weights.
    pub fn bytes(&self) -> usize {
        self.files.iter().map(|file| file.bytes().len()).sum()
    }

    /// How far a loader is that asks for each tensor once: the share of the weights asked for so far, at most 1.
    pub fn touched(&self) -> f64 {
        let touched = self.touched_bytes.load(Ordering::Relaxed);
        (touched as f64 / self.bytes().max(1) as f64).min(1.0)
    }

    /// BLAKE3 digests of the files that make the model what it is. Reads all of them.
    ///
    /// # Errors
    /// [`LoadError::File`].
    pub fn digests(&self) -> Result<Digests, LoadError> {
        let (mut model, mut head) = (Sums::default(), Sums::default());
        model.add(CONFIG.to_owned(), &self.source.weights(CONFIG)?);
        if self.head.is_some() {
            let config = self.head_source.weights(HEAD_CONFIG)?;
            head.add(HEAD_CONFIG.to_owned(), &config);
        }
        for file in &self.files {
            let name = file.path().file_name().unwrap_or_default();
            let name = name.to_string_lossy().into_owned();
            match name.as_str() {
                HEAD_ROWS | HEAD_WEIGHTS => head.add(name, file.bytes()),
                _ => model.add(name, file.bytes()),
            }
        }
        Ok(Digests {
            model: model.digest(),
            head: head.digest(),
            tokenizer: digest::of(&self.source.weights(TOKENIZER)?),
        })
    }

    /// Gives the mapped pages of all weight files back to the system until they are read again.
    pub fn discard_pages(&self) {
        for file in &self.files {
            file.discard_pages();
        }
    }

    /// Loads the tokenizer and checks that the embedding has a row for each of its ids.
    ///
    /// # Errors
    /// [`LoadError::File`], [`LoadError::Tokenizer`], [`LoadError::TokenizerIds`].
    pub fn tokenizer(&self) -> Result<Tokenizer, LoadError> {
        let text = self.source.text(TOKENIZER, tokenizer::BYTES_MAX)?;
        let tokenizer = Tokenizer::from_bytes(&self.source.path(TOKENIZER), text.as_bytes())?;
        tokenizer.check_ids(self.config.vocab)?;
        Ok(tokenizer)
    }

    /// Path of `tokenizer.json`; of an embedded release its name.
    pub fn tokenizer_path(&self) -> PathBuf {
        self.source.path(TOKENIZER)
    }

    /// The text of the chat template: `chat_template.jinja`, or the one inside `tokenizer_config.json`; none if the
    /// release has neither.
    ///
    /// # Errors
    /// [`LoadError::File`], [`LoadError::Json`], [`LoadError::Memory`].
    pub fn chat_template(&self) -> Result<Option<String>, LoadError> {
        if self.source.has(CHAT_TEMPLATE) {
            return self
                .source
                .text(CHAT_TEMPLATE, TEMPLATE_BYTES_MAX)
                .map(|text| Some(text.into_owned()));
        }
        let settings = self.tokenizer_settings()?;
        let template = match settings.get("chat_template") {
            // Several, each with a name.
            Some(serde_json::Value::Array(named)) => named
                .iter()
                .find(|entry| entry.get("name").is_some_and(|name| name == "default"))
                .and_then(|entry| entry.get("template")),
            other => other,
        };
        Ok(template
            .and_then(|template| template.as_str())
            .map(str::to_owned))
    }

    /// Names and texts of the tokens that `tokenizer_config.json` names, such as `eos_token`: a chat template may print
    /// them.
    ///
    /// # Errors
    /// [`LoadError::File`], [`LoadError::Json`], [`LoadError::Memory`].
    pub fn named_tokens(&self) -> Result<Vec<(String, String)>, LoadError> {
        let settings = self.tokenizer_settings()?;
        let named = settings.iter().filter(|(name, _)| name.ends_with("_token"));
        let text = |(name, token): (&String, &serde_json::Value)| {
            // Older files describe a token, others only write it.
            let text = token.get("content").unwrap_or(token).as_str()?;
            Some((name.clone(), text.to_owned()))
        };
        Ok(named.filter_map(text).collect())
    }

    /// The fields of `tokenizer_config.json`; none if there is no such file or it holds no object.
    fn tokenizer_settings(&self) -> Result<serde_json::Map<String, serde_json::Value>, LoadError> {
        if !self.source.has(TOKENIZER_CONFIG) {
            return Ok(serde_json::Map::new());
        }
        let text = self.source.text(TOKENIZER_CONFIG, TEMPLATE_BYTES_MAX)?;
        match serde_json::from_str(&text) {
            Ok(serde_json::Value::Object(settings)) => Ok(settings),
            Ok(_) => Ok(serde_json::Map::new()),
            Err(source) => Err(LoadError::Json {
                file: self.source.path(TOKENIZER_CONFIG),
                source,
            }),
        }
    }

    /// What each part takes, in the order of [`Part`]; parts without tensors are left out.
    pub fn sizes(&self) -> Vec<PartSize> {
        let mut sizes: BTreeMap<Part, PartSize> = BTreeMap::new();
        let mut add = |part, tensor: Tensor<'_>| {
            let size = sizes.entry(part).or_insert_with(|| PartSize {
                part,
                tensors: 0,
                parameters: 0,
                weights_bytes: 0,
                dtypes: Vec::new(),
            });
            size.tensors += 1;
            size.parameters += tensor.len();
            size.weights_bytes += tensor.bytes.len();
            if let Err(place) = size.dtypes.binary_search(&tensor.dtype) {
                size.dtypes.insert(place, tensor.dtype);
            }
        };
        for place in self.places.values() {
            add(place.part, self.files[place.file].at(place.index));
        }
        if let Some(file) = self.head_rows {
            add(Part::HeadRows, self.files[file].at(0));
        }
        sizes.into_values().collect()
    }

    /// Where the head's files were looked for.
    pub fn head_place(&self) -> PathBuf {
        self.head_source.place()
    }
}

impl fmt::Debug for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Release")
            .field("place", &self.place())
            .field("tensors", &self.places.len())
            .field("head", &self.head)
            .finish_non_exhaustive()
    }
}

/// The weight files and their tensors while they are compared with the plan.
#[derive(Default)]
struct Inventory {
    files: Vec<SafetensorsFile>,
    places: BTreeMap<String, Place>,
    head_rows: Option<usize>,
    faults: Vec<LoadError>,
}

impl Inventory {
    fn add_backbone(&mut self, source: &Source, prefix: &str) {
        for file in shards::open(source, &mut self.faults) {
            self.add(file, |name| backbone_part(name, prefix));
        }
    }

    fn add_head(&mut self, source: &Source, has_head: bool, config: &ModelConfig) {
        if has_head {
            match SafetensorsFile::from_source(source, HEAD_WEIGHTS) {
                Ok(file) => self.add(file, |_| Part::Head),
                Err(error) => self.faults.push(error),
            }
        }
        if source.has(HEAD_ROWS) {
            match SafetensorsFile::from_source(source, HEAD_ROWS) {
                Ok(file) => self.add_rows(file, config),
                Err(error) => self.faults.push(error),
            }
        }
    }

    fn add(&mut self, file: SafetensorsFile, part: impl Fn(&str) -> Part) {
        let number = self.files.len();
        for (index, tensor) in file.tensors().enumerate() {
            // Two shards with one tensor: the index names one of them, which was noted.
            let place = Place {
                file: number,
                index,
                part: part(tensor.name),
            };
            self.places.entry(tensor.name.to_owned()).or_insert(place);
        }
        self.files.push(file);
    }

    /// Takes `lm_head_rows.safetensors`: one tensor, whatever its name.
    fn add_rows(&mut self, file: SafetensorsFile, config: &ModelConfig) {
        let wanted = [config.vocab, config.hidden];
        for (index, tensor) in file.tensors().enumerate() {
            let (path, name) = (file.path().to_path_buf(), tensor.name.to_owned());
            if index > 0 {
                self.faults
                    .push(LoadError::TensorUnexpected { file: path, name });
            } else if tensor.shape != wanted {
                self.faults.push(shape_fault(path, tensor, CONFIG, &wanted));
            } else if !tensor.dtype.is_weight() {
                self.faults.push(LoadError::TensorQuantised {
                    file: path,
                    name,
                    found: tensor.dtype,
                });
            }
        }
        if file.is_empty() {
            self.faults.push(LoadError::TensorMissing {
                file: file.path().to_path_buf(),
                name: LM_HEAD.to_owned(),
                wanted: wanted.to_vec(),
            });
        }
        self.head_rows = Some(self.files.len());
        self.files.push(file);
    }

    /// Notes every tensor that is missing, wrong, or asked for by nobody.
    fn check(&mut self, source: &Source, plan: &LoadPlan) {
        let mut unplanned = self.places.clone();
        let packed: Vec<String> = self
            .places
            .keys()
            .filter(|name| is_packed(name))
            .cloned()
            .collect();
        let mut faults = Vec::new();
        for wanted in &plan.tensors {
            let Some(place) = unplanned.remove(&wanted.name) else {
                let elsewhere = wanted.part == Part::OutputEmbedding && self.head_rows.is_some();
                if !elsewhere && !self.is_packed_instead(&wanted.name) {
                    faults.push(self.missing(source, wanted));
                }
                continue;
            };
            let file = &self.files[place.file];
            let tensor = file.at(place.index);
            let (path, name) = (file.path().to_path_buf(), wanted.name.clone());
            if !tensor.dtype.is_weight() {
                faults.push(match place.part {
                    Part::Head => LoadError::HeadPrecision {
                        file: path,
                        name,
                        found: tensor.dtype,
                    },
                    _ => LoadError::TensorQuantised {
                        file: path,
                        name,
                        found: tensor.dtype,
                    },
                });
            } else if tensor.shape != wanted.shape {
                let config = if wanted.part == Part::Head {
                    HEAD_CONFIG
                } else {
                    CONFIG
                };
                faults.push(shape_fault(path, tensor, config, &wanted.shape));
            }
        }
        for name in packed {
            let Some(place) = unplanned.remove(&name) else {
                continue;
            };
            let file = &self.files[place.file];
            let (path, found) = (file.path().to_path_buf(), file.at(place.index).dtype);
            faults.push(match place.part {
                Part::Head => LoadError::HeadPrecision {
                    file: path,
                    name,
                    found,
                },
                _ => LoadError::TensorQuantised {
                    file: path,
                    name,
                    found,
                },
            });
        }
        for (name, place) in unplanned {
            if !matches!(place.part, Part::Mtp | Part::Vision) {
                let file = self.files[place.file].path().to_path_buf();
                faults.push(LoadError::TensorUnexpected { file, name });
            }
        }
        self.faults.append(&mut faults);
    }

    /// Whether a missing weight is there in a packed form, which is reported by its own name.
    fn is_packed_instead(&self, name: &str) -> bool {
        let stem = name.strip_suffix(".weight").unwrap_or(name);
        PACKED_SUFFIXES
            .iter()
            .any(|suffix| self.places.contains_key(&format!("{stem}{suffix}")))
    }

    fn missing(&self, source: &Source, wanted: &crate::plan::Wanted) -> LoadError {
        let in_part = |place: &&Place| place.part == wanted.part;
        let file = match self.places.values().find(in_part) {
            Some(place) if self.files.len() <= 3 => self.files[place.file].path().to_path_buf(),
            _ => source.place(),
        };
        LoadError::TensorMissing {
            file,
            name: wanted.name.clone(),
            wanted: wanted.shape.clone(),
        }
    }
}

fn shape_fault(
    file: PathBuf,
    tensor: Tensor<'_>,
    config: &'static str,
    wanted: &[usize],
) -> LoadError {
    LoadError::TensorShape {
        file,
        name: tensor.name.to_owned(),
        config,
        wanted: wanted.to_vec(),
        found: tensor.shape.to_vec(),
    }
}

/// The part of a backbone's tensor. What is no part's name counts as the text model's, where no plan asks for it.
fn backbone_part(name: &str, prefix: &str) -> Part {
    match name {
        LM_HEAD => Part::OutputEmbedding,
        _ if name.starts_with("mtp.") => Part::Mtp,
        _ if prefix == "model.language_model." && name.starts_with("model.visual.") => Part::Vision,
        _ => Part::Backbone,
    }
}

/// Whether a name is that of a packed, scaled or otherwise quantised form of a weight.
fn is_packed(name: &str) -> bool {
    PACKED_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}

/// What the usual quantisers append to the name of a linear map.
const PACKED_SUFFIXES: [&str; 15] = [
    ".weight_packed",
    ".weight_scale",
    ".weight_scale_2",
    ".weight_scale_inv",
    ".weight_global_scale",
    ".weight_zero_point",
    ".weight_shape",
    ".weight_g_idx",
    ".input_scale",
    ".input_global_scale",
    ".qweight",
    ".qzeros",
    ".scales",
    ".g_idx",
    ".biases",
];

/// Refuses what is no directory of a release, saying what it seems to be.
fn check_directory(directory: &Path) -> Result<(), LoadError> {
    let not = |found| {
        Err(LoadError::NotARelease {
            place: directory.to_path_buf(),
            found,
        })
    };
    if directory.is_file() {
        return not(if has_extension(directory, "gguf") {
            Foreign::Gguf
        } else {
            Foreign::SingleFile
        });
    }
    if !directory.is_dir() {
        return Err(LoadError::File {
            file: directory.to_path_buf(),
            fault: FileFault::Missing,
        });
    }
    let has = |name: &str| directory.join(name).symlink_metadata().is_ok();
    if has(CONFIG) && (has(shards::SINGLE) || has(shards::INDEX)) {
        return Ok(());
    }
    if holds_extension(directory, "gguf") {
        return not(Foreign::Gguf);
    }
    if has("adapter_config.json") {
        return not(Foreign::Adapter);
    }
    if has("pytorch_model.bin") || has("pytorch_model.bin.index.json") {
        return not(Foreign::Pickle);
    }
    if has(CONFIG) {
        // The missing weights are named with everything else.
        return Ok(());
    }
    not(if has(HEAD_CONFIG) {
        Foreign::HeadOnly
    } else {
        Foreign::Directory
    })
}

/// Refuses a `--clef` directory without a head: whoever names one wants it read.
fn check_head_directory(clef: &Path) -> Result<(), LoadError> {
    if !clef.is_dir() {
        return Err(LoadError::File {
            file: clef.to_path_buf(),
            fault: FileFault::Missing,
        });
    }
    let source = Source::Directory(clef.to_path_buf());
    if [HEAD_CONFIG, HEAD_WEIGHTS]
        .iter()
        .any(|name| source.has(name))
    {
        return Ok(());
    }
    Err(LoadError::File {
        file: source.path(HEAD_CONFIG),
        fault: FileFault::Missing,
    })
}

fn holds_extension(directory: &Path, extension: &str) -> bool {
    let Ok(entries) = directory.read_dir() else {
        return false;
    };
    entries
        .flatten()
        .any(|entry| has_extension(&entry.path(), extension))
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension()
        .is_some_and(|found| found.eq_ignore_ascii_case(extension))
}

/// Greatest size of a file with a chat template.
const TEMPLATE_BYTES_MAX: u64 = 4 << 20;
