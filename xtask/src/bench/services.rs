//! The services under load: each as its package brings it, on loopback, in a cgroup of its own, which is the target.

use std::{
    fmt, fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use super::{
    child::Running,
    group::Group,
    load::{self, Exchange, Load, Served},
};
use crate::process;

/// Connections of every load.
const CONNECTIONS: usize = 8;
/// Bytes of the value or file that is asked for.
const VALUE: usize = 100;

/// A service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Debian's memcached, two threads, GET of 100 bytes.
    Memcached,
    /// Debian's nginx, a worker a CPU, a file of 100 bytes.
    Nginx,
    /// Debian's Redis, GET of 100 bytes.
    Redis,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Memcached, Self::Nginx, Self::Redis];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memcached => "memcached",
            Self::Nginx => "nginx",
            Self::Redis => "redis",
        })
    }
}

/// A running service that answers.
#[derive(Debug)]
pub struct Service {
    kind: Kind,
    // Dropped before the group.
    _running: Running,
    group: Group,
    address: SocketAddr,
    exchange: Exchange,
}

impl Service {
    /// Starts it on a free port and stores what will be asked for.
    ///
    /// # Errors
    /// It does not start or does not answer.
    pub fn start(kind: Kind, dir: &Path) -> Result<Self> {
        let group = Group::new(&kind.to_string())?;
        // Free a moment ago; if somebody takes it meanwhile the service says so and ends.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let command = command(kind, address.port(), dir)?;
        let mut running = Running::start(&kind.to_string(), &command, &group, dir)?;
        running.wait_until(|_| TcpStream::connect(address).is_ok())?;
        let value = "x".repeat(VALUE);
        let (request, answer): (Vec<u8>, &'static [u8]) = match kind {
            Kind::Memcached => {
                let set = format!("set key 0 0 {VALUE}\r\n{value}\r\n");
                store(address, set.as_bytes(), b"STORED\r\n")?;
                (b"get key\r\n".to_vec(), b"VALUE key 0 100\r\nxxx")
            }
            Kind::Redis => {
                // The key that redis-benchmark asks for.
                let set = format!("SET key:__rand_int__ {value}\r\n");
                store(address, set.as_bytes(), b"+OK\r\n")?;
                let request = b"*2\r\n$3\r\nGET\r\n$16\r\nkey:__rand_int__\r\n".to_vec();
                (request, b"$100\r\nxxx")
            }
            Kind::Nginx => {
                let request = format!("GET /value HTTP/1.1\r\nHost: {address}\r\n\r\n").into_bytes();
                (request, b"HTTP/1.1 200 OK\r\n")
            }
        };
        let exchange = Exchange::learn(address, request, answer)?;
        Ok(Self {
            kind,
            _running: running,
            group,
            address,
            exchange,
        })
    }

    /// Its cgroup.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Answers a second as fast as they come, by the generator that its users take: wrk, redis-benchmark; for memcached
    /// none is packaged, so ours.
    ///
    /// `expected`: answers a second, for generators that count requests and not time.
    ///
    /// # Errors
    /// The generator fails or its output is not understood.
    pub fn saturate(&self, time: Duration, expected: f64) -> Result<f64> {
        let connections = CONNECTIONS.to_string();
        match self.kind {
            Kind::Memcached => Ok(self.load(None, time)?.throughput),
            Kind::Nginx => {
                let seconds = format!("{}s", time.as_secs().max(1));
                let url = format!("http://{}/value", self.address);
                let text = process::output(
                    Command::new("wrk")
                        .args(["-t", "1", "-c", &connections, "-d", &seconds])
                        .arg(url),
                )?;
                wrk_throughput(&text).with_context(|| format!("wrk printed: {text}"))
            }
            Kind::Redis => {
                let port = self.address.port().to_string();
                let requests = ((time.as_secs_f64() * expected) as u64).max(1000).to_string();
                let text = process::output(
                    Command::new("redis-benchmark")
                        .args([
                            "--csv",
                            "-h",
                            "127.0.0.1",
                            "-p",
                            &port,
                            "-c",
                            &connections,
                            "-n",
                            &requests,
                        ])
                        .args(["-t", "get"]),
                )?;
                redis_throughput(&text).with_context(|| format!("redis-benchmark printed: {text}"))
            }
        }
    }

    /// The open loop at this rate, or the closed loop.
    ///
    /// # Errors
    /// A wrong or late answer.
    pub fn load(&self, rate: Option<f64>, time: Duration) -> Result<Served> {
        load::run(
            &Load {
                address: self.address,
                connections: CONNECTIONS,
                rate,
                time,
            },
            &self.exchange,
        )
        .with_context(|| format!("load on {} failed", self.kind))
    }
}

fn command(kind: Kind, port: u16, dir: &Path) -> Result<Command> {
    let port = port.to_string();
    Ok(match kind {
        Kind::Memcached => {
            let mut command = Command::new("memcached");
            command.args([
                "-u",
                "root",
                "-l",
                "127.0.0.1",
                "-t",
                "2",
                "-m",
                "64",
                "-U",
                "0",
                "-p",
                &port,
            ]);
            command
        }
        Kind::Redis => {
            let mut command = Command::new("redis-server");
            command
                .args([
                    "--bind",
                    "127.0.0.1",
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                    "--port",
                    &port,
                ])
                .arg("--dir")
                .arg(dir);
            command
        }
        Kind::Nginx => {
            fs::write(dir.join("value"), "x".repeat(VALUE))?;
            let root = dir.display();
            let config = format!(
                "user root; worker_processes auto; daemon off; pid {root}/nginx.pid; error_log stderr;
                 events {{ worker_connections 256; }}
                 http {{ access_log off; keepalive_requests 1000000000; server {{ listen 127.0.0.1:{port}; root {root}; }} }}\n"
            );
            let path = dir.join("nginx.conf");
            fs::write(&path, config)?;
            let mut command = Command::new("nginx");
            command.arg("-c").arg(path).arg("-p").arg(dir).args(["-e", "stderr"]);
            command
        }
    })
}

fn store(address: SocketAddr, request: &[u8], good: &[u8]) -> Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(request)?;
    let mut answer = vec![0; good.len()];
    stream
        .read_exact(&mut answer)
        .context("no answer when a value is stored")?;
    if answer != good {
        bail!("storing a value gave {}", String::from_utf8_lossy(&answer));
    }
    Ok(())
}

/// `Requests/sec:  12345.67`; not when it saw errors.
fn wrk_throughput(text: &str) -> Option<f64> {
    if text.contains("Socket errors") || text.contains("Non-2xx") {
        return None;
    }
    text.lines()
        .find_map(|line| line.strip_prefix("Requests/sec:")?.trim().parse().ok())
}

/// `"GET","12345.67","0.1",…` after a head line.
fn redis_throughput(text: &str) -> Option<f64> {
    let row = text.lines().find(|line| line.starts_with("\"GET\""))?;
    row.split(',').nth(1)?.trim_matches('"').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generators_output_is_read() {
        assert_eq!(
            wrk_throughput("Running 1s test\nRequests/sec:  12345.67\nTransfer/sec: 3MB\n"),
            Some(12345.67)
        );
        assert_eq!(
            wrk_throughput("  Non-2xx or 3xx responses: 5\nRequests/sec:  12345.67\n"),
            None
        );
        assert_eq!(wrk_throughput("unable to connect\n"), None);
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"54321.10\",\"0.1\"\n";
        assert_eq!(redis_throughput(csv), Some(54321.1));
        assert_eq!(redis_throughput("Could not connect\n"), None);
    }
}
