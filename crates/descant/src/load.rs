//! From flags to a model: where it lies, its tokenizer, its weights, an engine that runs it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use descant_decision::{Budget, Limits, OverLength, Profile};
use descant_engine::{Engine, Settings, StartError};
use descant_release::hub::{Hub, HubError, HubName, HubSettings, ModelPlace};
use descant_release::{LoadError, ModelConfig, Outline, Release, Tokenizer};
use descant_server::{Confidence, Desk, ModelDigests, ModelEcho, Names, Provenance, Reading, Size};

use crate::args::{self, Accept, Compute, Length};
use crate::backend::{self, Device, Room};
use crate::dummy::Dummy;
use crate::embedded;
use crate::failure::Failure;
use crate::progress::Bars;

/// Where a model lies.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// In a directory.
    Directory(PathBuf),
    /// In the program.
    Embedded,
    /// On the Hub.
    Hub(HubName),
}

/// Finds the model that was asked for; says so if it is the built-in one.
pub(crate) fn place(model: Option<&str>) -> Result<Place, Failure> {
    let Some(model) = model else {
        crate::say(embedded::WARNING);
        return Ok(Place::Embedded);
    };
    match ModelPlace::parse(model) {
        Ok(ModelPlace::Directory(directory)) => Ok(Place::Directory(directory)),
        Ok(ModelPlace::Hub(name)) => Ok(Place::Hub(name)),
        Err(error) => Err(Failure::Load(LoadError::Hub(error))),
    }
}

impl Place {
    /// Opens and checks the release; one on the Hub is fetched first.
    pub(crate) fn release(&self, clef: Option<&Path>) -> Result<Release, Failure> {
        Ok(match self {
            Place::Directory(directory) => Release::open(directory, clef)?,
            Place::Embedded => Release::embedded(embedded::FILES)?,
            Place::Hub(name) => Release::open(&fetched(|hub, bars| hub.fetch(name, bars))?, clef)?,
        })
    }

    /// Loads the tokenizer alone.
    pub(crate) fn tokenizer(&self) -> Result<Tokenizer, Failure> {
        Ok(match self.texts()? {
            Some(directory) => Tokenizer::open(&directory.join("tokenizer.json"))?,
            None => Release::embedded(embedded::FILES)?.tokenizer()?,
        })
    }

    /// Reads the config files alone, if the release is not part of the program.
    pub(crate) fn outline(&self, clef: Option<&Path>) -> Result<Option<Outline>, Failure> {
        let outline = |directory: PathBuf| Outline::open(&directory, clef);
        Ok(self.texts()?.map(outline).transpose()?)
    }

    /// The directory of the config files and the tokenizer; none for the release that is part of the program.
    pub(crate) fn texts(&self) -> Result<Option<PathBuf>, Failure> {
        match self {
            Place::Directory(directory) => Ok(Some(directory.clone())),
            Place::Embedded => Ok(None),
            Place::Hub(name) => fetched(|hub, bars| hub.fetch_texts(name, bars)).map(Some),
        }
    }

    /// What the model is called, where nothing else says it.
    pub(crate) fn name(&self) -> String {
        match self {
            Place::Directory(directory) => {
                // `.` has no name of its own.
                let whole = directory
                    .canonicalize()
                    .unwrap_or_else(|_| directory.clone());
                whole
                    .file_name()
                    .unwrap_or(directory.as_os_str())
                    .to_string_lossy()
                    .into_owned()
            }
            Place::Embedded => embedded::NAME.to_owned(),
            Place::Hub(name) => name
                .to_string()
                .split('@')
                .next()
                .unwrap_or_default()
                .to_owned(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Directory(directory) => directory.display().fmt(f),
            Place::Embedded => write!(
                f,
                "{} (built in; knows software packages only)",
                embedded::NAME
            ),
            Place::Hub(name) => name.fmt(f),
        }
    }
}

/// Lets the Hub bring something, with progress on standard error.
fn fetched(
    fetch: impl FnOnce(&Hub, &mut Bars) -> Result<PathBuf, HubError>,
) -> Result<PathBuf, Failure> {
    let settings = HubSettings::from_env().map_err(LoadError::Hub)?;
    let directory = fetch(&Hub::new(settings), &mut Bars::default());
    directory.map_err(|error| Failure::Load(LoadError::Hub(error)))
}

/// A model that runs.
pub(crate) struct Loaded {
    pub(crate) release: Arc<Release>,
    pub(crate) engine: Engine,
}

impl Loaded {
    /// Loads the weights and starts an engine.
    pub(crate) fn new(
        release: impl Into<Arc<Release>>,
        compute: &Compute,
        room: Room,
        settings: &Settings,
    ) -> Result<Loaded, Failure> {
        let release = release.into();
        let device = backend::load(&release, compute, room, settings)?;
        Loaded::start(release, device, settings)
    }

    /// The same with weights of a shape alone; the release's are not loaded.
    pub(crate) fn with_dummy(
        release: Arc<Release>,
        dummy: &Dummy,
        compute: &Compute,
        room: Room,
        settings: &Settings,
    ) -> Result<Loaded, Failure> {
        let device = backend::load_dummy(dummy, compute, room, settings)?;
        Loaded::start(release, device, settings)
    }

    fn start(
        release: Arc<Release>,
        Device { backend, head }: Device,
        settings: &Settings,
    ) -> Result<Loaded, Failure> {
        match Engine::start(backend, head, settings) {
            Ok(engine) => Ok(Loaded { release, engine }),
            Err(StartError::Settings(error)) => Err(Failure::Settings(error)),
            Err(StartError::Thread(source)) => Err(Failure::Start {
                what: "the engine's thread",
                source: source.into(),
            }),
            Err(other) => Err(Failure::Start {
                what: "the engine",
                source: format!("{other:?}").into(),
            }),
        }
    }
}

/// The weights that stand in for a release's, if there are such; its tokenizer gives tokens that they know.
pub(crate) fn dummy(shape: Option<&str>, release: &Release) -> Result<Option<Dummy>, Failure> {
    let Some(shape) = shape else {
        return Ok(None);
    };
    let dummy = Dummy::of(shape)?;
    let (tokens, vocab) = (release.config().vocab, dummy.outline().config.vocab);
    match tokens <= vocab {
        true => Ok(Some(dummy)),
        false => Err(Failure::DummyVocab { tokens, vocab }),
    }
}

/// The engine of a command that asks one thing at a time: it waits as long as it must, and keeps no states, since most
/// runs ask once.
pub(crate) fn settings_alone() -> Settings {
    Settings {
        wait_max: None,
        cache_bytes: 0,
        ..Settings::default()
    }
}

/// How long an engine that is told to stop may go on with a round.
pub(crate) const ENGINE_STOP: Duration = Duration::from_secs(5);

/// The names under which requests may ask for a model.
pub(crate) fn names(
    place: &Place,
    config: &ModelConfig,
    served: Option<String>,
    any: bool,
) -> Names {
    let size = Size::from_backbone(config.hidden, config.layers.len());
    let own = place.name();
    let served = served
        .or_else(|| size.name().map(str::to_owned))
        .unwrap_or_else(|| own.clone());
    Names::new(served, vec![own], size, any)
}

/// The name of weights that stand in for a release's: no other, so that every reply says what they are.
pub(crate) fn dummy_name(dummy: &Dummy) -> Names {
    Names::new(dummy.name(), Vec::new(), Size::Dummy, false)
}

/// The names of a model on the command line, where `-m` says which model is meant: whatever a request calls it.
pub(crate) fn any_name(place: &Place) -> Names {
    Names::new(place.name(), Vec::new(), Size::Other, true)
}

/// A desk for a model.
pub(crate) fn desk(
    names: Names,
    tokenizer: impl Into<Arc<Tokenizer>>,
    (accept, length): (&Accept, &Length),
    confidence: Confidence,
) -> Desk {
    let over_length = match length.over_length {
        args::OverLength::Refuse => OverLength::Refuse,
        args::OverLength::Truncate => OverLength::Truncate,
    };
    let budget = Budget {
        max_length: length.max_length,
        over_length,
    };
    let tokenizer: Arc<Tokenizer> = tokenizer.into();
    Desk::new(names, tokenizer, budget, confidence).with_limits(limits(accept))
}

fn limits(accept: &Accept) -> Limits {
    let of_forms = match accept.accept {
        args::Forms::Documented => Limits::default(),
        args::Forms::Release => Limits::release(),
    };
    Limits {
        levels_max: accept.max_levels.unwrap_or(of_forms.levels_max),
        options_max: accept.max_options.unwrap_or(of_forms.options_max),
        questions_max: accept.max_questions.unwrap_or(of_forms.questions_max),
        ..of_forms
    }
}

/// Where a model's answers come from, for receipts.
pub(crate) fn provenance(backend: String, release: &Arc<Release>) -> Provenance {
    let release = Arc::clone(release);
    Provenance::new(backend, move || {
        let digests = release.digests().map_err(|error| error.to_string())?;
        // The pages were read once; what runs needs them no more than before.
        release.discard_pages();
        Ok(ModelDigests {
            model: digests.model,
            head: digests.head,
            tokenizer: digests.tokenizer,
        })
    })
}

/// Where answers of weights that stand in for a release's come from: nothing that a receipt could name.
pub(crate) fn dummy_provenance(backend: &str) -> Provenance {
    Provenance::new(format!("{backend}, dummy weights"), || {
        Err("the weights are no release's".to_owned())
    })
}

/// One sentence about a model, for listings.
pub(crate) fn describe(release: &Release) -> String {
    let config = release.config();
    let what = match release.head() {
        Some(_) => "Decision model: qwen3_5 backbone with a joint schema head",
        None => "qwen3_5 backbone without a joint schema head",
    };
    format!(
        "{what}, {} layers of {}",
        config.layers.len(),
        config.hidden
    )
}

/// Says on standard error that a state was cut.
pub(crate) fn say_truncated(tokens: usize) {
    if tokens > 0 {
        crate::say(&format!(
            "warning: {tokens} tokens were cut from the end of the state"
        ));
    }
}

impl From<args::Confidence> for Confidence {
    fn from(flag: args::Confidence) -> Confidence {
        match flag {
            args::Confidence::Auto => Confidence::Auto,
            args::Confidence::Clef => Confidence::Fixed(Profile::Clef),
            args::Confidence::Cloudflare => Confidence::Fixed(Profile::Cloudflare),
            args::Confidence::Entropy => Confidence::Fixed(Profile::Entropy),
            args::Confidence::Typesafe => Confidence::Fixed(Profile::TypeSafe),
        }
    }
}

impl From<&args::ReadingFlags> for Reading {
    fn from(flags: &args::ReadingFlags) -> Reading {
        Reading {
            split: flags.split_questions,
            neutral_ids: flags.neutral_ids,
        }
    }
}

impl From<args::ModelEcho> for ModelEcho {
    fn from(flag: args::ModelEcho) -> ModelEcho {
        match flag {
            args::ModelEcho::Always => ModelEcho::Always,
            args::ModelEcho::Auto => ModelEcho::Auto,
            args::ModelEcho::Never => ModelEcho::Never,
        }
    }
}
