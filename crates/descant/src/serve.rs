//! `descant serve`: decisions and chat over HTTP, until told to stop.

use std::future::Future;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use descant_engine::{Engine, Settings};
use descant_release::{Release, Tokenizer};
use descant_server::{App, Card, ChatDesk, ChatTemplate, Limits, Setup, Vocabulary, serve};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::{LimitFlags, Serve};
use crate::backend::Room;
use crate::failure::Failure;
use crate::load::{self, Loaded};
use crate::log;

pub(crate) fn run(args: &Serve) -> Result<(), Failure> {
    log::start(&args.log, args.log_format)?;
    let runtime = runtime()?;
    // Taken before the model is loaded, which may take minutes: a port in use is told at once.
    let address = SocketAddr::new(args.host, args.port);
    let bind = runtime.block_on(TcpListener::bind(address));
    let listener = bind.map_err(|source| Failure::Bind { address, source })?;
    let (setup, engine) = setup(args)?;
    let served = runtime.block_on(listen(listener, setup));
    engine.shutdown(load::ENGINE_STOP);
    served
}

/// Loads the model and puts together what the server serves.
fn setup(args: &Serve) -> Result<(Setup, Engine), Failure> {
    let place = load::place(args.model.model.as_deref())?;
    let release = place.release(args.model.clef.clef.as_deref())?;
    let no_head = release
        .require_head()
        .err()
        .map(|missing| missing.to_string());
    let names = load::names(
        &place,
        release.config(),
        args.served_name.clone(),
        args.any_model,
    );
    let tokenizer = Arc::new(release.tokenizer()?);
    let room = Room::for_server(args);
    let settings = Settings {
        queue_max: args.limits.queue,
        wait_max: Some(Duration::from_secs(args.limits.queue_timeout)),
        cache_bytes: room.cache_bytes(),
        ..Settings::default()
    };
    let chat = chat_desk(args, &release, &tokenizer)?;
    let Loaded { release, engine } = Loaded::new(release, &args.compute, room, &settings)?;
    tracing::info!(model = names.served(), place = %place, "loaded");
    if let Some(missing) = &no_head {
        tracing::warn!(missing, "decisions will be refused");
    }
    let card = Card {
        description: load::describe(&release),
        length_max: args.length.max_length,
        loaded: SystemTime::now(),
    };
    let setup = Setup {
        desk: load::desk(
            names,
            tokenizer,
            (&args.accept, &args.length),
            args.confidence.into(),
        ),
        engine: engine.handle(),
        card,
        limits: limits(&args.limits),
        readers: std::thread::available_parallelism().map_or(1, usize::from),
        no_head,
        chat,
    };
    Ok((setup, engine))
}

/// How conversations and texts are read, or why they are not.
fn chat_desk(
    args: &Serve,
    release: &Release,
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
    let (turn_ends, vocab) = (release.config().eos.clone(), release.config().vocab);
    let length_max = args.length.max_length;
    Ok(Ok(ChatDesk::new(
        vocabulary, template, turn_ends, vocab, length_max,
    )))
}

async fn listen(listener: TcpListener, setup: Setup) -> Result<(), Failure> {
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
    // For whoever started the server with port 0; nobody needs to read it.
    let _ = writeln!(io::stdout(), "listening on http://{address}");
    serve(listener, Arc::new(App::new(setup)), stop).await;
    tracing::info!("stopped");
    Ok(())
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
