//! `descant serve`: decisions and chat over HTTP, until told to stop.

use std::future::Future;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, SystemTime};

use descant_engine::{Engine, Settings};
use descant_release::{ModelConfig, Release, Tokenizer};
use descant_server::{
    App, Card, ChatDesk, ChatTemplate, Front, Limits, Origins, Progress, Provenance, Setup,
    Vocabulary, make_way_for_connections, serve,
};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::args::{LimitFlags, Serve};
use crate::backend::{self, Room};
use crate::dummy::Dummy;
use crate::failure::Failure;
use crate::keys::KeyRing;
use crate::load::{self, Loaded};
use crate::log;
use crate::traces::Telling;

/// The release once it is open, for telling how much of it is loaded.
type Opened = Arc<OnceLock<Arc<Release>>>;

pub(crate) fn run(args: Serve) -> Result<(), Failure> {
    log::start(&args.log, args.log_format)?;
    let keys = KeyRing::open(&args.access)?;
    let collector = args.otlp_endpoint.as_deref();
    let collector = collector.filter(|address| !address.is_empty());
    let telling = collector.map(Telling::start).transpose()?;
    let runtime = runtime()?;
    // Taken before the model is loaded, which may take minutes: a port in use is told at once, and probes are answered.
    let address = SocketAddr::new(args.host, args.port);
    let bind = runtime.block_on(TcpListener::bind(address));
    let listener = bind.map_err(|source| Failure::Bind { address, source })?;
    let opened = Opened::default();
    let app = Arc::new(App::new(Front {
        traces: telling.as_ref().map(Telling::traces),
        ..front(&args, &keys, &opened)
    }));
    let served = runtime.block_on(async {
        let (address, stop) = prepared(&listener)?;
        tokio::spawn(keys.watch());
        let (give_up, given_up) = oneshot::channel::<()>();
        let stop = async move {
            tokio::select! {
                () = stop => {}
                _ = given_up => {}
            }
        };
        let mut serving = tokio::spawn(serve(listener, Arc::clone(&app), stop));
        let engine = tokio::select! {
            // Told to stop before the model is there: nothing is at hand that could be finished.
            _ = &mut serving => return Ok(None),
            loaded = loaded(args, opened) => match loaded {
                Ok((setup, engine)) => {
                    app.open(setup);
                    engine
                }
                Err(failure) => {
                    drop(give_up);
                    let _ = serving.await;
                    return Err(failure);
                }
            },
        };
        tracing::info!(%address, "ready");
        // For whoever started the server with port 0; nobody needs to read it.
        let _ = writeln!(io::stdout(), "listening on http://{address}");
        let _ = serving.await;
        drop(give_up);
        Ok(Some(engine))
    });
    if let Some(engine) = served? {
        engine.shutdown(load::ENGINE_STOP);
    }
    if let Some(telling) = telling {
        telling.stop();
    }
    tracing::info!("stopped");
    Ok(())
}

fn front(args: &Serve, keys: &KeyRing, opened: &Opened) -> Front {
    let opened = Arc::clone(opened);
    Front {
        limits: limits(&args.limits),
        readers: thread::available_parallelism().map_or(1, usize::from),
        keys: keys.keys.clone(),
        origins: Origins::from_flags(args.access.cors_origin.clone()),
        progress: Progress::new(move || opened.get().map_or(0.0, |release| release.touched())),
        traces: None,
    }
}

/// Loads the model on a thread of its own, which ends with the process if it is not waited for.
async fn loaded(args: Serve, opened: Opened) -> Result<(Setup, Engine), Failure> {
    let (done, loaded) = oneshot::channel();
    let spawned = thread::Builder::new().name("loader".into()).spawn(move || {
        // The threads of the engine and of the head have it from this one.
        make_way_for_connections();
        drop(done.send(setup(&args, &opened)));
    });
    spawned.map_err(|source| Failure::Start {
        what: "the loader's thread",
        source: source.into(),
    })?;
    loaded.await.unwrap_or_else(|_| {
        Err(Failure::Start {
            what: "the model",
            source: "its loader panicked".into(),
        })
    })
}

/// Loads the model and puts together what the server serves.
fn setup(args: &Serve, opened: &Opened) -> Result<(Setup, Engine), Failure> {
    let place = load::place(args.model.model.as_deref())?;
    let release = Arc::new(place.release(args.model.clef.clef.as_deref())?);
    let dummy = load::dummy(args.dummy.dummy_weights.as_deref(), &release)?;
    let no_head = match &dummy {
        None => release.require_head().err(),
        Some(_) => None,
    };
    let no_head = no_head.map(|missing| missing.to_string());
    let config = dummy
        .as_ref()
        .map_or_else(|| release.config(), |dummy| &dummy.outline().config);
    let names = match &dummy {
        Some(dummy) => load::dummy_name(dummy),
        None => load::names(&place, config, args.served_name.clone(), args.any_model),
    };
    let tokenizer = Arc::new(release.tokenizer()?);
    let room = Room::for_server(args)?;
    let settings = Settings {
        queue_max: args.limits.queue,
        wait_max: Some(Duration::from_secs(args.limits.queue_timeout)),
        cache_bytes: room.cache_bytes(),
        cache_rows_min: backend::cache_rows_min(&args.compute)?,
        ..Settings::default()
    };
    let chat = chat_desk(args, &release, config, &tokenizer)?;
    let Loaded { release, engine } = match &dummy {
        Some(dummy) => {
            let release = Arc::clone(&release);
            Loaded::with_dummy(release, dummy, &args.compute, room, &settings)?
        }
        None => {
            let release = Arc::clone(opened.get_or_init(|| Arc::clone(&release)));
            Loaded::new(release, &args.compute, room, &settings)?
        }
    };
    tracing::info!(model = names.served(), place = %place, "loaded");
    if let Some(missing) = &no_head {
        tracing::warn!(missing, "decisions will be refused");
    }
    let (provenance, description) = told(args, &release, dummy.as_ref());
    if args.receipts
        && let Err(error) = provenance.digests()
    {
        tracing::warn!(error, "no receipts can be given");
    }
    let card = Card {
        description,
        length_max: args.length.max_length,
        loaded: SystemTime::now(),
    };
    let desk = load::desk(
        names,
        tokenizer,
        (&args.accept, &args.length),
        args.confidence.into(),
    );
    let setup = Setup {
        desk: desk
            .with_reading((&args.reading).into())
            .with_echo(args.model_echo.into()),
        engine: engine.handle(),
        card,
        provenance,
        no_head,
        chat,
    };
    Ok((setup, engine))
}

/// Where answers come from, and a sentence about the model.
fn told(args: &Serve, release: &Arc<Release>, dummy: Option<&Dummy>) -> (Provenance, String) {
    let backend = backend::name(&args.compute);
    match dummy {
        Some(dummy) => (load::dummy_provenance(&backend), dummy.label()),
        None => (load::provenance(backend, release), load::describe(release)),
    }
}

/// How conversations and texts are read, or why they are not.
fn chat_desk(
    args: &Serve,
    release: &Release,
    config: &ModelConfig,
    tokenizer: &Arc<Tokenizer>,
) -> Result<Result<ChatDesk, String>, Failure> {
    if args.no_chat {
        return Ok(Err("it was started with --no-chat".to_owned()));
    }
    let template = match release.chat_template()? {
        Some(source) => ChatTemplate::new(&source, release.named_tokens()?)
            .map_err(|error| format!("the release's chat template cannot be used: {error}")),
        None => Err("the release has no chat template".to_owned()),
    };
    if let Err(missing) = &template {
        tracing::warn!(missing, "chat will be refused");
    }
    let vocabulary = Arc::clone(tokenizer) as Arc<dyn Vocabulary>;
    let (turn_ends, vocab) = (release.config().eos.clone(), config.vocab);
    let length_max = args.length.max_length;
    Ok(Ok(ChatDesk::new(
        vocabulary, template, turn_ends, vocab, length_max,
    )))
}

/// The address that is listened on, and what ends the server.
fn prepared(
    listener: &TcpListener,
) -> Result<(SocketAddr, impl Future<Output = ()> + use<>), Failure> {
    let start = |what| {
        move |source: io::Error| Failure::Start {
            what,
            source: source.into(),
        }
    };
    let address = listener
        .local_addr()
        .map_err(start("the listening socket"))?;
    let stop = stop_signals().map_err(start("signal handlers"))?;
    tracing::info!(%address, "listening");
    Ok((address, stop))
}

/// Ready at the first interrupt or termination signal. At the second one the process ends.
fn stop_signals() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        either(&mut interrupt, &mut terminate).await;
        tracing::info!("stopping; a second signal ends the program at once");
        tokio::spawn(async move {
            either(&mut interrupt, &mut terminate).await;
            process::exit(1);
        });
    })
}

async fn either(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

fn runtime() -> Result<Runtime, Failure> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let built = builder
        .worker_threads(IO_THREADS)
        .thread_name("descant-io")
        .enable_all()
        .build();
    built.map_err(|source| Failure::Start {
        what: "the network threads",
        source: source.into(),
    })
}

/// Threads that serve connections. They only move bytes; reading bodies and computing have threads of their own.
const IO_THREADS: usize = 2;

fn limits(flags: &LimitFlags) -> Limits {
    let default = Limits::default();
    Limits {
        body_bytes_max: flags.max_body_bytes,
        bodies_bytes_max: default.bodies_bytes_max.max(2 * flags.max_body_bytes),
        connections_max: flags.max_connections,
        header_wait_max: Duration::from_secs(flags.header_timeout),
        body_wait_max: Duration::from_secs(flags.body_timeout),
        queue_wait_max: Some(Duration::from_secs(flags.queue_timeout)),
        request_time_max: flags.request_timeout.map(Duration::from_secs),
        idle_max: Duration::from_secs(flags.idle_timeout),
        stop_wait_max: Duration::from_secs(flags.stop_timeout),
        ..default
    }
}
