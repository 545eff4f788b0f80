//! Load on a service on loopback, bounded in time: requests over some connections, as fast as answers come (closed loop)
//! or at a fixed mean rate (open loop).
//!
//! In the open loop a request that was due while the connection still waited for an earlier answer counts from when it
//! was due, so a stall of the service is seen by all the requests it delayed. A request that this side sent late, though
//! the connection was free, counts from when it was sent: that delay is not the service's.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::stats::{Random, quantile};

/// A request that can be repeated, and how its answer begins. Every answer has the same length.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Bytes to send.
    pub request: Vec<u8>,
    /// First bytes of a good answer.
    pub answer: &'static [u8],
    /// Length of every answer.
    pub answer_bytes: usize,
}

impl Exchange {
    /// Asks once and takes the answer's length from what comes until the service is quiet for 100 ms.
    ///
    /// # Errors
    /// No connection, or an answer that does not begin as it should.
    pub fn learn(address: SocketAddr, request: Vec<u8>, answer: &'static [u8]) -> Result<Self> {
        let mut stream = connect(address)?;
        stream.write_all(&request)?;
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        let mut came = Vec::new();
        let mut piece = [0; 65536];
        while let Ok(read @ 1..) = stream.read(&mut piece) {
            came.extend_from_slice(&piece[..read]);
        }
        if !came.starts_with(answer) {
            bail!("{address} answered: {}", text(&came));
        }
        Ok(Self {
            request,
            answer,
            answer_bytes: came.len(),
        })
    }
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address).with_context(|| format!("failed to connect to {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    Ok(stream)
}

/// The beginning of an answer, for people.
fn text(answer: &[u8]) -> String {
    String::from_utf8_lossy(&answer[..answer.len().min(200)]).into_owned()
}

/// How much load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Where the service listens.
    pub address: SocketAddr,
    /// Connections, each with its own thread.
    pub connections: usize,
    /// Mean requests a second over all connections, in Poisson arrivals; `None`: closed loop.
    pub rate: Option<f64>,
    /// How long.
    pub time: Duration,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Served {
    /// Number of answers.
    pub answers: usize,
    /// Answers a second.
    pub throughput: f64,
    /// 99 % of the answers came within this, in microseconds.
    pub p99_us: f64,
}

/// Runs the load.
///
/// # Errors
/// A connection fails, an answer is wrong or does not come within 5 s.
pub fn run(load: &Load, exchange: &Exchange) -> Result<Served> {
    let mut connections = Vec::new();
    for _ in 0..load.connections {
        connections.push(Connection::open(load.address, exchange)?);
    }
    let start = Instant::now();
    let results: Vec<Result<Vec<f64>>> = thread::scope(|scope| {
        let handles: Vec<_> = connections
            .into_iter()
            .enumerate()
            .map(|(index, mut connection)| scope.spawn(move || connection.work(load, Random::new(index as u64), start)))
            .collect();
        handles
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|_| bail!("a load thread panicked")))
            .collect()
    });
    let seconds = start.elapsed().as_secs_f64();
    let mut latencies = Vec::new();
    for result in results {
        latencies.extend(result?);
    }
    Ok(Served {
        answers: latencies.len(),
        throughput: latencies.len() as f64 / seconds,
        p99_us: quantile(&latencies, 0.99),
    })
}

struct Connection<'a> {
    stream: TcpStream,
    exchange: &'a Exchange,
    answer: Vec<u8>,
}

impl<'a> Connection<'a> {
    fn open(address: SocketAddr, exchange: &'a Exchange) -> Result<Self> {
        Ok(Self {
            stream: connect(address)?,
            exchange,
            answer: vec![0; exchange.answer_bytes],
        })
    }

    /// Latencies in microseconds.
    fn work(&mut self, load: &Load, mut random: Random, start: Instant) -> Result<Vec<f64>> {
        let mean_gap = load.rate.map(|rate| load.connections as f64 / rate);
        let mut due_s = 0.0;
        let mut free_at = start;
        let mut latencies = Vec::new();
        loop {
            let mut from = Instant::now();
            if let Some(mean_gap) = mean_gap {
                due_s -= mean_gap * random.unit().ln();
                let due = start + Duration::from_secs_f64(due_s);
                if due >= start + load.time {
                    return Ok(latencies);
                }
                if due > from {
                    thread::sleep(due - from);
                    from = Instant::now();
                }
                if due < free_at {
                    from = due;
                }
            } else if from >= start + load.time {
                return Ok(latencies);
            }
            self.stream
                .write_all(&self.exchange.request)
                .context("failed to send a request")?;
            self.stream
                .read_exact(&mut self.answer)
                .context("no full answer within 5 s")?;
            if !self.answer.starts_with(self.exchange.answer) {
                bail!("wrong answer: {}", text(&self.answer));
            }
            free_at = Instant::now();
            latencies.push(free_at.duration_since(from).as_secs_f64() * 1e6);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Answers every 4 bytes with `pong`; stalls before the first answer on its second connection.
    fn service(stall: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for (turn, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                let mut request = [0; 4];
                let mut pause = if turn == 1 { stall } else { Duration::ZERO };
                while stream.read_exact(&mut request).is_ok() {
                    thread::sleep(std::mem::take(&mut pause));
                    if stream.write_all(b"pong").is_err() {
                        break;
                    }
                }
            }
        });
        address
    }

    fn load(address: SocketAddr, rate: Option<f64>) -> Load {
        Load {
            address,
            connections: 1,
            rate,
            time: Duration::from_millis(400),
        }
    }

    fn ping(address: SocketAddr) -> Exchange {
        Exchange::learn(address, b"ping".to_vec(), b"pong").unwrap()
    }

    #[test]
    fn closed_loop_goes_on_for_the_time_given() {
        let start = Instant::now();
        let address = service(Duration::ZERO);
        let served = run(&load(address, None), &ping(address)).unwrap();
        assert!(served.throughput > 500.0, "{served:?}");
        assert!(start.elapsed() >= Duration::from_millis(400));
    }

    #[test]
    fn open_loop_keeps_the_rate() {
        let address = service(Duration::ZERO);
        let served = run(&load(address, Some(500.0)), &ping(address)).unwrap();
        assert!((350.0..=650.0).contains(&served.throughput), "{served:?}");
    }

    /// 200 ms of stall at 500 a second delay about 100 of 200 requests, not one.
    #[test]
    fn a_stall_is_seen_by_every_request_it_delays() {
        let address = service(Duration::from_millis(200));
        let exchange = ping(address);
        let mut connection = Connection::open(address, &exchange).unwrap();
        let latencies = connection
            .work(&load(address, Some(500.0)), Random::new(1), Instant::now())
            .unwrap();
        let slow = latencies.iter().filter(|&&us| us > 20_000.0).count();
        assert!(slow > latencies.len() / 4, "{slow} of {}", latencies.len());
    }

    #[test]
    fn a_wrong_answer_is_an_error() {
        let address = service(Duration::ZERO);
        let error = Exchange::learn(address, b"ping".to_vec(), b"PONG").unwrap_err();
        assert!(error.to_string().contains("answered: pong"), "{error}");
        let error = run(
            &load(address, None),
            &Exchange {
                answer: b"PONG",
                ..ping(address)
            },
        )
        .unwrap_err();
        assert!(error.to_string().contains("wrong answer: pong"), "{error}");
    }
}
