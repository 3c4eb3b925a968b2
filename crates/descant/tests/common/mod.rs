//! What the tests of the program share: the built binary, a server on a free port, a plain HTTP client that sends
//! exactly the bytes it is told to.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use descant_decision::json::{self, Value};

/// How long a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// A path from the repository's root.
pub fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// The program with some arguments, without the caller's settings. `DESCANT_PROGRAM` names another build of it than the
/// tests' own.
pub fn descant(args: &[&str]) -> Command {
    let program = std::env::var_os("DESCANT_PROGRAM");
    let mut command = Command::new(program.unwrap_or_else(|| env!("CARGO_BIN_EXE_descant").into()));
    command
        .args(args)
        .env_remove("DESCANT_MODEL")
        .env_remove("DESCANT_LOG")
        .env_remove("DESCANT_API_KEY")
        .env_remove("OTEL_EXPORTER_OTLP_ENDPOINT")
        .env_remove("HTTP_PROXY")
        .env_remove("http_proxy")
        .env_remove("ALL_PROXY")
        .env_remove("all_proxy");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs the program on some input.
pub fn run(args: &[&str], input: &[u8]) -> Output {
    let mut child = descant(args).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        // A program that refuses early does not read to the end.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

/// What the program printed, as text.
pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A server process; killed when dropped.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    log: Arc<Mutex<Vec<u8>>>,
    /// Ends the server when this process ends without dropping it, as it does with statics: the shell's input then
    /// closes.
    watch: Child,
}

impl Server {
    /// Starts a server on a free port and waits until it listens. Where no model is named it is the tiny random one: what
    /// these tests are about does not depend on weights, and they ask for thousands of decisions.
    pub fn start(args: &[&str]) -> Server {
        let all = [&["serve", "--port", "0"], args].concat();
        let mut command = descant(&all);
        command.env("DESCANT_MODEL", repository("models/tiny-random"));
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut stderr = child.stderr.take().unwrap();
        let kept = Arc::clone(&log);
        // The log is read as it comes, so that the server never waits for a reader.
        std::thread::spawn(move || {
            let mut step = [0; 4096];
            while let Ok(got @ 1..) = stderr.read(&mut step) {
                kept.lock().unwrap().extend_from_slice(&step[..got]);
            }
        });
        let watch = Command::new("sh")
            .args(["-c", &format!("cat; kill {}", child.id())])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = |address| Server {
            child,
            address,
            log,
            watch,
        };
        match line.trim_end().strip_prefix("listening on http://") {
            Some(address) => server(address.parse().unwrap()),
            None => panic!("the server ended before it listened"),
        }
    }

    pub fn connect(&self) -> Connection {
        Connection::open(self.address)
    }

    /// One request on a connection of its own.
    pub fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Reply {
        self.connect().ask(method, path, headers, body)
    }

    /// A decision.
    pub fn decide(&self, body: &[u8]) -> Reply {
        self.ask(
            "POST",
            "/v1/systemone",
            "content-type: application/json\r\n",
            body,
        )
    }

    /// What the server has logged so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&self.log.lock().unwrap()).into_owned()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the process to end by itself; its exit code, or nothing when it does not end in time.
    pub fn wait(&mut self) -> Option<i32> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Resident memory of the process, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<usize>()
            .unwrap()
            * 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // The watch goes first: its `kill` must not meet another process with the number of one that was waited for.
        drop(self.watch.stdin.take());
        let _ = self.watch.wait();
        let _ = self.child.wait();
    }
}

/// One HTTP/1.1 connection.
pub struct Connection {
    reader: BufReader<TcpStream>,
}

impl Connection {
    pub fn open(address: SocketAddr) -> Connection {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Connection {
            reader: BufReader::new(stream),
        }
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    /// Sends a request and reads its reply.
    pub fn ask(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) -> Reply {
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: test\r\n{headers}content-length: {length}\r\n\r\n"
        );
        self.send(&[head.as_bytes(), body].concat()).unwrap();
        self.reply_to(method)
    }

    /// Reads a reply to a request other than HEAD.
    pub fn reply(&mut self) -> Reply {
        self.reply_to("")
    }

    fn reply_to(&mut self, method: &str) -> Reply {
        let status_line = self.line();
        let status = status_line
            .split(' ')
            .nth(1)
            .expect("a status")
            .parse()
            .unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').unwrap();
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut reply = Reply {
            status,
            headers,
            body: Vec::new(),
        };
        let length = reply
            .header("content-length")
            .map_or(0, |length| length.parse().unwrap());
        if method != "HEAD" {
            reply.body = vec![0; length];
            self.reader.read_exact(&mut reply.body).unwrap();
        }
        reply
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        assert!(line.ends_with("\r\n"), "the connection ended in {line:?}");
        line.truncate(line.len() - 2);
        line
    }

    /// Reads so many bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.reader.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Closes the sending side.
    pub fn half_close(&self) {
        self.reader.get_ref().shutdown(Shutdown::Write).unwrap();
    }

    /// Reads until the server closes the connection; what came, or an error when it does not close in time.
    pub fn rest(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        match self.reader.read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(bytes),
            Err(error) => Err(error),
        }
    }
}

/// What a server replied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(found, _)| found == name)
            .map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        json::parse(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }
}

/// The value at a path of keys.
pub fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(value, |value, key| {
        value
            .get(key)
            .unwrap_or_else(|| panic!("no {key} in {value}"))
    })
}
