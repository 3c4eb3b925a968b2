//! Fetching against a stand-in for the Hub on loopback: a small HTTP server that can cut, redirect and lie.
#![expect(clippy::unwrap_used, reason = "a stand-in that breaks fails its test")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use descant_release::hub::{Hub, HubError, HubName, HubSettings, ModelPlace, Progress};
use ring::digest::{SHA256, digest};
use tempfile::TempDir;

/// The commit of every stand-in.
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

#[derive(Clone, Debug)]
struct Request {
    method: String,
    path: String,
    headers: BTreeMap<String, String>,
}

#[derive(Clone, Default)]
struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// Bytes of the body after which the connection is cut.
    cut: Option<usize>,
}

impl Reply {
    fn status(status: u16) -> Reply {
        Reply {
            status,
            ..Reply::default()
        }
    }
}

type Answer = dyn Fn(&Request) -> Reply + Send + Sync;

/// A server that answers each connection once and keeps what it was asked.
struct StandIn {
    address: String,
    asked: Arc<Mutex<Vec<Request>>>,
}

impl StandIn {
    fn new(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> StandIn {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (Arc::clone(&asked), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                std::thread::spawn(move || serve(stream, &log, &*answer as &Answer));
            }
        });
        StandIn { address, asked }
    }

    fn paths(&self, method: &str) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        asked
            .iter()
            .filter(|request| request.method == method)
            .map(|request| request.path.clone())
            .collect()
    }

    fn count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

fn serve(mut stream: TcpStream, log: &Mutex<Vec<Request>>, answer: &Answer) {
    let mut lines = BufReader::new(stream.try_clone().unwrap())
        .lines()
        .map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    let mut words = first.split(' ');
    let (method, path) = (
        words.next().unwrap().to_owned(),
        words.next().unwrap().to_owned(),
    );
    let headers = lines.take_while(|line| !line.is_empty());
    let headers = headers.filter_map(|line| {
        line.split_once(": ")
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
    });
    let request = Request {
        method,
        path,
        headers: headers.collect(),
    };
    log.lock().unwrap().push(request.clone());
    let reply = answer(&request);
    let mut head = format!("HTTP/1.1 {} X\r\nconnection: close\r\n", reply.status);
    if !reply
        .headers
        .iter()
        .any(|(name, _)| *name == "content-length")
    {
        head += &format!("content-length: {}\r\n", reply.body.len());
    }
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += "\r\n";
    let _ = stream.write_all(head.as_bytes());
    if request.method != "HEAD" {
        let _ = stream.write_all(&reply.body[..reply.cut.unwrap_or(reply.body.len())]);
    }
}

/// A repository's files, and how the Hub serves them.
#[derive(Clone)]
struct Repository {
    files: BTreeMap<&'static str, Vec<u8>>,
    /// Where large files are, as the `location` header says it: `{}` stands for the stand-in's `host:port`.
    store: &'static str,
}

impl Repository {
    fn new() -> Repository {
        let index = br#"{"metadata": {}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
        let bytes = |seed: u8| {
            (0..300_000_u32)
                .map(|i| (i.wrapping_mul(31) >> 3) as u8 ^ seed)
                .collect::<Vec<_>>()
        };
        Repository {
            files: BTreeMap::from([
                ("config.json", b"{}".to_vec()),
                ("tokenizer.json", b"{\"t\": 1}".to_vec()),
                ("chat_template.jinja", b"{{ x }}".to_vec()),
                ("joint_head_config.json", b"{\"h\": 1}".to_vec()),
                ("joint_head.safetensors", bytes(3)),
                ("model.safetensors.index.json", index.to_vec()),
                ("model-1.safetensors", bytes(1)),
                ("model-2.safetensors", bytes(2)),
                ("README.md", b"not needed".to_vec()),
            ]),
            store: "http://{}/store/",
        }
    }

    fn answer(&self, request: &Request) -> Reply {
        if let Some((_, name)) = request.path.split_once("/store/") {
            return content(&self.files[name], request);
        }
        let Some(file) = request.path.strip_prefix("/owner/name/resolve/") else {
            return Reply::status(404);
        };
        let (revision, file) = file.split_once('/').unwrap();
        if revision != "main" && revision != COMMIT {
            return Reply {
                headers: vec![("x-error-code", "RevisionNotFound".to_owned())],
                ..Reply::status(404)
            };
        }
        let Some(bytes) = self.files.get(file) else {
            return Reply {
                headers: vec![("x-error-code", "EntryNotFound".to_owned())],
                ..Reply::status(404)
            };
        };
        let mut headers = vec![("x-repo-commit", COMMIT.to_owned())];
        if !file.ends_with(".safetensors") {
            headers.push(("etag", format!("\"{}\"", &sha256(bytes)[..40])));
            let reply = content(bytes, request);
            headers.extend(reply.headers);
            return Reply { headers, ..reply };
        }
        headers.push(("x-linked-etag", format!("\"{}\"", sha256(bytes))));
        headers.push(("x-linked-size", bytes.len().to_string()));
        headers.push((
            "location",
            self.store.replace("{}", &request.headers["host"]) + file,
        ));
        Reply {
            headers,
            ..Reply::status(302)
        }
    }
}

/// A content, whole or from the byte that the request's range names.
fn content(bytes: &[u8], request: &Request) -> Reply {
    let start = request
        .headers
        .get("range")
        .and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let Some((start, end)) = start else {
        return Reply {
            body: bytes.to_vec(),
            ..Reply::status(200)
        };
    };
    let start: usize = start.parse().unwrap();
    let end = end.parse().map_or(bytes.len(), |end: usize| end + 1);
    let range = format!("bytes {start}-{}/{}", end - 1, bytes.len());
    Reply {
        headers: vec![("content-range", range)],
        body: bytes[start..end].to_vec(),
        ..Reply::status(206)
    }
}

fn sha256(bytes: &[u8]) -> String {
    digest(&SHA256, bytes)
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn settings(endpoint: &str, cache: &Path) -> HubSettings {
    HubSettings {
        endpoint: endpoint.to_owned(),
        cache: cache.to_path_buf(),
        token: None,
        offline: false,
        retry_wait: Duration::from_millis(1),
    }
}

fn hub(stand_in: &StandIn, cache: &TempDir) -> Hub {
    Hub::new(settings(&stand_in.address, cache.path()))
}

fn name(text: &str) -> HubName {
    HubName::parse(text).unwrap()
}

fn repository_folder(cache: &TempDir) -> PathBuf {
    cache.path().join("models--owner--name")
}

fn fetch(stand_in: &StandIn, cache: &TempDir) -> Result<PathBuf, HubError> {
    hub(stand_in, cache).fetch(&name("owner/name"), &mut ())
}

/// Keeps what a fetch tells.
#[derive(Default)]
struct Told {
    files: Vec<(String, u64, u64)>,
    bytes: u64,
    notes: Vec<String>,
}

impl Progress for Told {
    fn file(&mut self, name: &str, bytes: u64, present: u64) {
        self.files.push((name.to_owned(), bytes, present));
    }

    fn advance(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }
}

#[test]
fn a_fresh_fetch_lays_out_the_cache_and_takes_only_what_is_needed() {
    let (repository, cache) = (Repository::new(), TempDir::new().unwrap());
    let files = repository.files.clone();
    let stand_in = StandIn::new(move |request| repository.answer(request));
    let mut told = Told::default();
    let snapshot = hub(&stand_in, &cache)
        .fetch(&name("owner/name"), &mut told)
        .unwrap();
    assert_eq!(
        snapshot,
        repository_folder(&cache).join("snapshots").join(COMMIT)
    );
    for (file, bytes) in files.iter().filter(|(file, _)| **file != "README.md") {
        assert_eq!(&fs::read(snapshot.join(file)).unwrap(), bytes, "{file}");
    }
    assert!(!snapshot.join("README.md").exists());
    assert_eq!(
        fs::read_to_string(repository_folder(&cache).join("refs/main")).unwrap(),
        COMMIT
    );
    let link = fs::read_link(snapshot.join("model-1.safetensors")).unwrap();
    assert_eq!(
        link,
        Path::new("../../blobs").join(sha256(&files["model-1.safetensors"]))
    );
    assert!(
        repository_folder(&cache)
            .join(".no_exist")
            .join(COMMIT)
            .join("generation_config.json")
            .exists()
    );
    let wanted: u64 = files
        .iter()
        .filter(|(file, _)| **file != "README.md")
        .map(|(_, b)| b.len() as u64)
        .sum();
    assert_eq!(told.bytes, wanted);
    assert!(told.files.iter().all(|(_, _, present)| *present == 0));
    assert!(told.notes.is_empty(), "{:?}", told.notes);
}

#[test]
fn without_weights_a_fetch_takes_the_texts_and_a_whole_one_goes_on_from_there() {
    let (repository, cache) = (Repository::new(), TempDir::new().unwrap());
    let stand_in = StandIn::new(move |request| repository.answer(request));
    let texts = hub(&stand_in, &cache)
        .fetch_texts(&name("owner/name"), &mut ())
        .unwrap();
    assert!(texts.join("config.json").exists() && texts.join("tokenizer.json").exists());
    let holds_weights = fs::read_dir(&texts)
        .unwrap()
        .any(|entry| entry.unwrap().path().extension() == Some("safetensors".as_ref()));
    assert!(!holds_weights);
    let asked = stand_in.count();
    let again = hub(&stand_in, &cache).fetch_texts(&name("owner/name"), &mut ());
    assert_eq!(
        (again.unwrap(), stand_in.count()),
        (texts.clone(), asked + 1)
    );
    let mut told = Told::default();
    let whole = hub(&stand_in, &cache).fetch(&name("owner/name"), &mut told);
    assert_eq!(whole.unwrap(), texts);
    assert!(texts.join("model-1.safetensors").exists());
    assert!(
        told.files
            .iter()
            .all(|(file, ..)| !file.ends_with("tokenizer.json"))
    );
}

#[test]
fn a_cached_release_costs_one_question_and_a_commit_none() {
    let (repository, cache) = (Repository::new(), TempDir::new().unwrap());
    let stand_in = StandIn::new(move |request| repository.answer(request));
    let first = fetch(&stand_in, &cache).unwrap();
    let asked = stand_in.count();
    assert_eq!(fetch(&stand_in, &cache).unwrap(), first);
    assert_eq!(stand_in.count(), asked + 1);
    let pinned = hub(&stand_in, &cache)
        .fetch(&name(&format!("owner/name@{COMMIT}")), &mut ())
        .unwrap();
    assert_eq!((pinned, stand_in.count()), (first, asked + 1));
}

#[test]
fn a_cut_connection_is_resumed_where_it_stopped() {
    let (repository, cache) = (Repository::new(), TempDir::new().unwrap());
    let cuts = Mutex::new(0);
    let stand_in = StandIn::new(move |request| {
        let mut reply = repository.answer(request);
        let mut cuts = cuts.lock().unwrap();
        if request.path == "/store/model-1.safetensors" && *cuts < 8 {
            *cuts += 1;
            reply.cut = Some(20_000);
        }
        reply
    });
    let mut told = Told::default();
    hub(&stand_in, &cache)
        .fetch(&name("owner/name"), &mut told)
        .unwrap();
    let asked = stand_in.asked.lock().unwrap();
    let ranges: Vec<_> = asked
        .iter()
        .filter(|request| request.path == "/store/model-1.safetensors")
        .map(|request| request.headers.get("range").cloned())
        .collect();
    // Eight cuts are more than the retries that a silent server gets: what moves is not failing.
    assert_eq!(ranges.len(), 9);
    assert_eq!(ranges[0], None);
    assert_eq!(ranges[8].as_deref(), Some("bytes=160000-"));
    assert_eq!(told.notes.len(), 8);
}

#[test]
fn a_killed_run_is_resumed_by_the_next() {
    let (repository, cache) = (Repository::new(), TempDir::new().unwrap());
    let bytes = repository.files["model-2.safetensors"].clone();
    let blobs = repository_folder(&cache).join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(
        blobs.join(format!("{}.incomplete", sha256(&bytes))),
        &bytes[..123_456],
    )
    .unwrap();
    let stand_in = StandIn::new(move |request| repository.answer(request));
    let mut told = Told::default();
    let snapshot = hub(&stand_in, &cache)
        .fetch(&name("owner/name"), &mut told)
        .unwrap();
    assert_eq!(
        fs::read(snapshot.join("model-2.safetensors")).unwrap(),
        bytes
    );
    assert!(
        told.files
            .contains(&("model-2.safetensors".to_owned(), 300_000, 123_456))
    );
    let asked = stand_in.asked.lock().unwrap();
    let request = asked
        .iter()
        .find(|request| request.path == "/store/model-2.safetensors")
        .unwrap();
    assert_eq!(request.headers["range"], "bytes=123456-");
}

#[test]
fn a_server_without_ranges_starts_the_file_anew() {
    let (repository, cache) = (Repository::new(), TempDir::new().unwrap());
    let bytes = repository.files["model-2.safetensors"].clone();
    let blobs = repository_folder(&cache).join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(
        blobs.join(format!("{}.incomplete", sha256(&bytes))),
        [7; 1000],
    )
    .unwrap();
    let stand_in = StandIn::new(move |request| {
        let mut request = request.clone();
        request.headers.remove("range");
        repository.answer(&request)
    });
    let snapshot = fetch(&stand_in, &cache).unwrap();
    assert_eq!(
        fs::read(snapshot.join("model-2.safetensors")).unwrap(),
        bytes
    );
}

#[test]
fn a_damaged_partial_file_is_found_by_its_sum_and_fetched_anew() {
    let (repository, cache) = (Repository::new(), TempDir::new().unwrap());
    let bytes = repository.files["model-2.safetensors"].clone();
    let incomplete = repository_folder(&cache)
        .join("blobs")
        .join(format!("{}.incomplete", sha256(&bytes)));
    fs::create_dir_all(incomplete.parent().unwrap()).unwrap();
    fs::write(&incomplete, [7; 1000]).unwrap();
    let stand_in = StandIn::new(move |request| repository.answer(request));
    let error = fetch(&stand_in, &cache).unwrap_err();
    assert!(
        matches!(&error, HubError::Sum { file, .. } if file == "model-2.safetensors"),
        "{error}"
    );
    assert!(!incomplete.exists());
    let snapshot = fetch(&stand_in, &cache).unwrap();
    assert_eq!(
        fs::read(snapshot.join("model-2.safetensors")).unwrap(),
        bytes
    );
}

#[test]
fn redirects_are_followed_whether_absolute_or_relative() {
    for store in ["http://{}/store/", "/store/", "//{}/store/", "store/"] {
        let (mut repository, cache) = (Repository::new(), TempDir::new().unwrap());
        repository.store = store;
        let stand_in = StandIn::new(move |request| repository.answer(request));
        fetch(&stand_in, &cache).unwrap_or_else(|error| panic!("{store}: {error}"));
    }
}

#[test]
fn a_renamed_repository_is_followed() {
    let (repository, cache) = (Repository::new(), TempDir::new().unwrap());
    let stand_in = StandIn::new(
        move |request| match request.path.strip_prefix("/old/name/") {
            Some(rest) => Reply {
                headers: vec![("location", format!("/owner/name/{rest}"))],
                ..Reply::status(307)
            },
            None => repository.answer(request),
        },
    );
    hub(&stand_in, &cache)
        .fetch(&name("old/name"), &mut ())
        .unwrap();
}

#[test]
fn the_token_goes_to_the_hub_and_to_nobody_else() {
    let (mut repository, cache) = (Repository::new(), TempDir::new().unwrap());
    let other = {
        let repository = repository.clone();
        StandIn::new(move |request| repository.answer(request))
    };
    repository.store = Box::leak(format!("{}/store/", other.address).into_boxed_str());
    let stand_in = StandIn::new(move |request| repository.answer(request));
    let settings = HubSettings {
        token: Some("hf_secret".to_owned()),
        ..settings(&stand_in.address, cache.path())
    };
    assert!(!format!("{settings:?}").contains("secret"));
    Hub::new(settings)
        .fetch(&name("owner/name"), &mut ())
        .unwrap();
    let with_token = |stand_in: &StandIn| {
        let asked = stand_in.asked.lock().unwrap();
        asked
            .iter()
            .filter(|request| request.headers.contains_key("authorization"))
            .count()
    };
    assert_eq!(with_token(&stand_in), stand_in.count());
    assert_eq!((other.count(), with_token(&other)), (3, 0));
}

#[test]
fn without_network_the_cache_is_used_and_what_it_lacks_is_named() {
    let (repository, cache) = (Repository::new(), TempDir::new().unwrap());
    let stand_in = StandIn::new(move |request| repository.answer(request));
    let offline = HubSettings {
        offline: true,
        ..settings(&stand_in.address, cache.path())
    };
    let ask =
        |settings: &HubSettings| Hub::new(settings.clone()).fetch(&name("owner/name"), &mut ());
    assert!(
        matches!(ask(&offline), Err(HubError::Offline { file, source: None, .. }) if file == "config.json")
    );
    assert_eq!(stand_in.count(), 0);

    let snapshot = fetch(&stand_in, &cache).unwrap();
    let asked = stand_in.count();
    assert_eq!(ask(&offline).unwrap(), snapshot);
    assert_eq!(stand_in.count(), asked);

    // Nobody listens: the complete snapshot is used, and said to be.
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let unreachable = settings(&format!("http://{closed}"), cache.path());
    let mut told = Told::default();
    assert_eq!(
        Hub::new(unreachable.clone())
            .fetch(&name("owner/name"), &mut told)
            .unwrap(),
        snapshot
    );
    assert!(
        told.notes[0].contains("using the cached owner/name@main"),
        "{:?}",
        told.notes
    );

    fs::remove_file(snapshot.join("model-2.safetensors")).unwrap();
    assert!(
        matches!(ask(&offline), Err(HubError::Offline { file, .. }) if file == "model-2.safetensors")
    );
    assert!(matches!(
        ask(&unreachable),
        Err(HubError::Offline {
            source: Some(_),
            ..
        })
    ));
}

#[test]
fn refusals_say_what_to_do() {
    let repository = Repository::new();
    let cases: [(&str, u16, &str, &str); 4] = [
        (
            "owner/private",
            401,
            "RepoNotFound",
            "HF_TOKEN takes an access token",
        ),
        ("owner/gated", 403, "GatedRepo", "is private or gated"),
        ("owner/absent", 404, "RepoNotFound", "does not exist"),
        ("owner/none", 404, "", "has no config.json"),
    ];
    let stand_in = StandIn::new(move |request| {
        match cases
            .iter()
            .find(|(name, ..)| request.path.starts_with(&format!("/{name}/")))
        {
            Some((_, status, code, _)) => Reply {
                headers: vec![("x-error-code", (*code).to_owned())],
                ..Reply::status(*status)
            },
            None => repository.answer(request),
        }
    });
    let cache = TempDir::new().unwrap();
    for (repository, _, _, wanted) in cases {
        let error = hub(&stand_in, &cache)
            .fetch(&name(repository), &mut ())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(wanted) && error.contains(repository),
            "{error}"
        );
    }
    let error = hub(&stand_in, &cache)
        .fetch(&name("owner/name@v9"), &mut ())
        .unwrap_err();
    assert_eq!(error.to_string(), "the Hub has no revision owner/name@v9");
    assert!(
        fs::read_dir(cache.path()).unwrap().next().is_none(),
        "a refusal leaves nothing in the cache"
    );
}

#[test]
fn a_busy_server_is_asked_again_and_a_broken_one_given_up() {
    let (repository, cache) = (Repository::new(), TempDir::new().unwrap());
    let failures = Mutex::new(BTreeMap::new());
    let stand_in = StandIn::new(move |request| {
        let mut failures = failures.lock().unwrap();
        let count = failures.entry(request.path.clone()).or_insert(0);
        *count += 1;
        match *count {
            1 => Reply {
                headers: vec![("retry-after", "0".to_owned())],
                ..Reply::status(429)
            },
            2 => Reply::status(503),
            _ => repository.answer(request),
        }
    });
    fetch(&stand_in, &cache).unwrap();

    let (broken, cache) = (
        StandIn::new(|_| Reply::status(500)),
        TempDir::new().unwrap(),
    );
    let error = fetch(&broken, &cache).unwrap_err();
    assert!(
        matches!(error, HubError::Status { status: 500, .. }),
        "{error}"
    );
    assert_eq!(broken.count(), 6);
}

#[test]
fn a_size_that_differs_from_the_promise_is_refused() {
    // What the store sends, given the promised bytes.
    type Lie = fn(Vec<u8>) -> Vec<u8>;
    let lies: [Lie; 2] = [
        |mut bytes| bytes.split_off(1),
        |mut bytes| {
            bytes.push(0);
            bytes
        },
    ];
    for lie in lies {
        let (repository, cache) = (Repository::new(), TempDir::new().unwrap());
        let stand_in = StandIn::new(move |request| {
            let reply = repository.answer(request);
            match request.path.starts_with("/store/") {
                true => Reply {
                    body: lie(reply.body),
                    ..reply
                },
                false => reply,
            }
        });
        let error = fetch(&stand_in, &cache).unwrap_err();
        assert!(
            matches!(
                &error,
                HubError::Size {
                    wanted: 300_000,
                    ..
                }
            ),
            "{error}"
        );
        assert!(!repository_folder(&cache).join("refs").exists());
    }
}

#[test]
fn names_from_outside_never_leave_the_cache() {
    let evil = [
        ("etag", "../../../evil"),
        ("etag", "a/b"),
        ("etag", ".."),
        ("x-repo-commit", "../../evil"),
        ("x-repo-commit", ""),
    ];
    for (header, value) in evil {
        let (repository, cache) = (Repository::new(), TempDir::new().unwrap());
        let stand_in = StandIn::new(move |request| {
            let mut reply = repository.answer(request);
            reply.headers.retain(|(name, _)| *name != header);
            reply.headers.push((
                header,
                format!("\"{value}\"")
                    .trim_matches(if header == "etag" { ' ' } else { '"' })
                    .to_owned(),
            ));
            reply
        });
        let error = fetch(&stand_in, &cache).unwrap_err();
        assert!(
            matches!(error, HubError::Header { .. }),
            "{header} {value}: {error}"
        );
        assert!(fs::read_dir(cache.path()).unwrap().next().is_none());
    }
    for shard in [
        "../evil.safetensors",
        "/evil.safetensors",
        "a/b.safetensors",
        ".hidden.safetensors",
        "evil.bin",
    ] {
        let (mut repository, cache) = (Repository::new(), TempDir::new().unwrap());
        let index = format!(r#"{{"weight_map": {{"a": "{shard}"}}}}"#);
        repository
            .files
            .insert("model.safetensors.index.json", index.into_bytes());
        let stand_in = StandIn::new(move |request| repository.answer(request));
        let error = fetch(&stand_in, &cache).unwrap_err();
        assert!(matches!(error, HubError::Index { .. }), "{shard}: {error}");
        assert!(
            stand_in
                .paths("GET")
                .iter()
                .all(|path| !path.contains("evil") && !path.contains("hidden"))
        );
    }
}

#[test]
fn a_redirect_without_end_or_to_another_scheme_is_refused() {
    let cache = TempDir::new().unwrap();
    for location in [
        "/owner/name/resolve/main/config.json",
        "file:///etc/passwd",
        "ftp://127.0.0.1/x",
    ] {
        let stand_in = StandIn::new(move |_| Reply {
            headers: vec![("location", location.to_owned())],
            ..Reply::status(302)
        });
        let error = fetch(&stand_in, &cache).unwrap_err();
        assert!(
            matches!(error, HubError::TooManyRedirects { .. }),
            "{location}: {error}"
        );
    }
}

#[test]
fn a_server_that_is_no_hub_is_named_by_what_it_lacks() {
    let cache = TempDir::new().unwrap();
    let stand_in = StandIn::new(|_| Reply {
        body: b"<html>".to_vec(),
        ..Reply::status(200)
    });
    let error = fetch(&stand_in, &cache).unwrap_err().to_string();
    assert!(
        error.contains("answers without x-repo-commit") && error.contains("HF_ENDPOINT"),
        "{error}"
    );
}

#[test]
fn a_mirror_without_head_is_asked_for_the_first_byte() {
    let (repository, cache) = (Repository::new(), TempDir::new().unwrap());
    let stand_in = StandIn::new(move |request| match request.method.as_str() {
        "HEAD" => Reply::status(405),
        _ => {
            // Such mirrors keep the commit and the etag on the last answer too.
            let file = request.path.rsplit('/').next().unwrap();
            let mut reply = repository.answer(request);
            if let Some(bytes) = repository
                .files
                .get(file)
                .filter(|_| request.path.starts_with("/store/"))
            {
                reply.headers.push(("etag", sha256(bytes)));
            }
            reply
        }
    });
    let snapshot = fetch(&stand_in, &cache).unwrap();
    assert_eq!(
        fs::metadata(snapshot.join("model-1.safetensors"))
            .unwrap()
            .len(),
        300_000
    );
}

#[test]
fn two_fetches_at_once_do_not_disturb_each_other() {
    let (repository, cache) = (Repository::new(), TempDir::new().unwrap());
    let stand_in = StandIn::new(move |request| {
        if request.path.starts_with("/store/") {
            std::thread::sleep(Duration::from_millis(50));
        }
        repository.answer(request)
    });
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| fetch(&stand_in, &cache).unwrap()))
            .collect();
        let snapshots: Vec<_> = runs.into_iter().map(|run| run.join().unwrap()).collect();
        assert!(snapshots.windows(2).all(|pair| pair[0] == pair[1]));
    });
    // The lock lets the first fetch a content; the others find it.
    let stored = stand_in
        .paths("GET")
        .iter()
        .filter(|path| path.starts_with("/store/"))
        .count();
    assert_eq!(stored, 3);
}

#[test]
fn an_argument_is_a_directory_or_a_hub_name() {
    let here = TempDir::new().unwrap();
    let path = here.path().to_str().unwrap();
    assert_eq!(
        ModelPlace::parse(path).unwrap(),
        ModelPlace::Directory(here.path().to_path_buf())
    );
    for (text, wanted) in [
        ("owner/name", "owner/name@main"),
        ("owner/name@v1.0", "owner/name@v1.0"),
        ("owner/name@refs/pr/1", "owner/name@refs/pr/1"),
    ] {
        let ModelPlace::Hub(name) = ModelPlace::parse(text).unwrap() else {
            panic!("{text}")
        };
        assert_eq!(name.to_string(), wanted);
    }
    for text in [
        "",
        "name",
        "./absent",
        "../owner/name",
        "a/b/c",
        "/absent/dir",
        "owner/",
        "/name",
        "owner/name@",
        "owner/..",
        "owner/na me",
        "owner/name@../x",
        "owner/name@a//b",
        "owner/name@-x",
        "own\u{e9}r/name",
        "~/x",
        "owner/name?x",
    ] {
        assert!(
            matches!(ModelPlace::parse(text), Err(HubError::NotAModel { .. })),
            "{text}"
        );
    }
}

#[test]
fn the_usual_variables_say_where_hub_and_cache_are() {
    let home = TempDir::new().unwrap();
    let home_text = home.path().to_str().unwrap().to_owned();
    let read = |pairs: &[(&str, &str)]| {
        let map: BTreeMap<String, String> = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        HubSettings::from_variables(|name| map.get(name).cloned())
    };
    let plain = read(&[("HOME", "/h")]).unwrap();
    assert_eq!(plain.cache, Path::new("/h/.cache/huggingface/hub"));
    assert!(plain.endpoint.starts_with("https://") && !plain.offline && plain.token.is_none());
    assert_eq!(
        read(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")])
            .unwrap()
            .cache,
        Path::new("/x/huggingface/hub")
    );
    assert_eq!(
        read(&[("HOME", "/h"), ("HF_HOME", "/f")]).unwrap().cache,
        Path::new("/f/hub")
    );
    assert_eq!(
        read(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")])
            .unwrap()
            .cache,
        Path::new("/c")
    );
    let set = read(&[
        ("HF_HOME", &home_text),
        ("HF_TOKEN", " hf_x\n"),
        ("HF_HUB_OFFLINE", "1"),
    ])
    .unwrap();
    assert_eq!((set.token.as_deref(), set.offline), (Some("hf_x"), true));
    fs::write(home.path().join("token"), "hf_file\n").unwrap();
    let stored = read(&[
        ("HF_HOME", &home_text),
        ("HF_HUB_OFFLINE", "0"),
        ("HF_TOKEN", ""),
    ])
    .unwrap();
    assert_eq!(
        (stored.token.as_deref(), stored.offline),
        (Some("hf_file"), false)
    );
    for (name, value) in [("HF_ENDPOINT", "hub.example"), ("HF_TOKEN", "two words")] {
        let error = read(&[("HOME", "/h"), (name, value)]).unwrap_err();
        assert!(
            matches!(error, HubError::Variable { variable, .. } if variable == name),
            "{error}"
        );
    }
    assert!(matches!(read(&[]), Err(HubError::Variable { .. })));
}
