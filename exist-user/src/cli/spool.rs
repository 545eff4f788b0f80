//! `exist spool`: the folder of windows, and the requests in it.

use std::{
    io::Write,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use clap::Args;
use serde::Serialize;

use super::{
    Outcome, quantity,
    roots::RootArgs,
    text::{self, Align, Table},
};
use crate::{
    agent::{self, EndReason, Options, Privileges},
    spool::{self, Kind, Name, Quota, SpoolError},
};

const DEFAULT_BYTES: u64 = 1 << 30;
const DEFAULT_AGE_NS: u64 = 7 * 24 * 3600 * 1_000_000_000;
/// Between two looks for requests.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What a spool may hold.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct QuotaArgs {
    /// All files of the spool together; beyond it the oldest that no request holds go [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes)]
    spool_bytes: Option<u64>,
    /// Windows older than this go [default: 168h]
    #[arg(long, value_name = "TIME", value_parser = quantity::duration_ns)]
    spool_age: Option<u64>,
}

impl QuotaArgs {
    pub const fn is_given(self) -> bool {
        self.spool_bytes.is_some() || self.spool_age.is_some()
    }

    pub fn quota(self) -> Quota {
        Quota {
            bytes: self.spool_bytes.unwrap_or(DEFAULT_BYTES),
            age: Duration::from_nanos(self.spool_age.unwrap_or(DEFAULT_AGE_NS)),
        }
    }
}

/// List a spool's windows and requests; carry requests out
#[derive(Debug, Args)]
#[command(after_help = "\
A request is a file DIR/requests/NAME.json that holds a session, put there by a rename. When it is carried out it stands in
DIR/done/, with its window in DIR/windows/NAME.exist or the reason why there is none in DIR/done/NAME.error. Whoever has
taken the window removes DIR/done/NAME.json; until then the window is kept. A name is used once.

Examples:
  exist spool /var/spool/exist
  exist spool /var/spool/exist --json
  echo '{\"target\":{\"pid\":4711},\"period_ns\":500000000}' > r && mv r /var/spool/exist/requests/slow-1.json
  exist spool /var/spool/exist --work once")]
pub struct Spool {
    /// The folder; made if it is not there
    dir: PathBuf,
    /// Print one JSON object a file
    #[arg(long, conflicts_with = "work")]
    json: bool,
    /// Carry out the requests that wait (`once`), and those that come, until interrupted (`on`)
    #[arg(long, value_enum, value_name = "WHICH")]
    work: Option<Work>,
    #[command(flatten)]
    quota: QuotaArgs,
    #[command(flatten)]
    roots: RootArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Work {
    Once,
    On,
}

/// A file, or a request, for JSON.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Row {
    name: String,
    /// `window`, `held`, `live`, `leftover`, `request`, `done`.
    kind: &'static str,
    bytes: u64,
    /// CLOCK_REALTIME; 0 for requests.
    modified_ns: u64,
}

impl Spool {
    pub fn run(&self, out: &mut dyn Write) -> anyhow::Result<Outcome> {
        let spool = spool::Spool::open(&self.dir, self.quota.quota())?;
        match self.work {
            Some(work) => self.work(&spool, work),
            None => self.list(&spool, out),
        }
    }

    fn list(&self, spool: &spool::Spool, out: &mut dyn Write) -> anyhow::Result<Outcome> {
        let rows = rows(spool)?;
        if self.json {
            for row in &rows {
                serde_json::to_writer(&mut *out, row)?;
                writeln!(out)?;
            }
            return Ok(Outcome::Done);
        }
        let mut table = Table::new(&[
            ("NAME", Align::Left),
            ("WHAT", Align::Left),
            ("BYTES", Align::Right),
            ("WRITTEN", Align::Left),
        ]);
        for row in &rows {
            let (bytes, at) = match row.modified_ns {
                0 => (String::new(), String::new()),
                at => (text::bytes(row.bytes), text::utc(at)),
            };
            table.row([row.name.clone(), row.kind.to_owned(), bytes, at]);
        }
        table.print("", out)?;
        let total = rows.iter().map(|row| row.bytes).sum();
        writeln!(
            out,
            "{} in {}",
            text::bytes(total),
            text::plain(&self.dir.to_string_lossy())
        )?;
        Ok(Outcome::Done)
    }

    fn work(&self, spool: &spool::Spool, work: Work) -> anyhow::Result<Outcome> {
        loop {
            for request in spool.requests()? {
                if self.carry_out(spool, &request)? == Some(EndReason::Interrupted) {
                    return Ok(Outcome::Done);
                }
            }
            if work == Work::Once {
                return Ok(Outcome::Done);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Gives how the recording ended; `None`: the request was refused, and who asked can read why.
    fn carry_out(&self, spool: &spool::Spool, name: &Name) -> anyhow::Result<Option<EndReason>> {
        let session = match spool.request(name) {
            Err(SpoolError::Request { reason, .. }) => return refuse(spool, name, &reason),
            other => other?,
        };
        spool.admit(SystemTime::now())?;
        let options = Options {
            out: spool.window(name),
            roots: self.roots.roots(),
            ring_bytes: None,
            // The next request needs them again.
            privileges: Privileges::Keep,
            earlier: spool::earlier(&self.dir, &session.target),
            session,
        };
        match agent::record(&options, |_| {}) {
            Err(error) => refuse(spool, name, &format!("{error:#}")),
            Ok(summary) => {
                spool.close(name)?;
                // Only a hint for the next plan.
                if let Err(error) = spool.remember(&options.session.target, summary.fill) {
                    eprintln!("{name}: {}", text::plain(&format!("{:#}", anyhow::Error::new(error))));
                }
                spool.sweep(SystemTime::now(), Some(name))?;
                eprintln!("{name}: {}", text::bytes(summary.bytes));
                Ok(Some(summary.reason))
            }
        }
    }
}

fn refuse(spool: &spool::Spool, name: &Name, reason: &str) -> anyhow::Result<Option<EndReason>> {
    eprintln!("{name}: {}", text::plain(reason));
    spool.refuse(name, reason)?;
    Ok(None)
}

fn rows(spool: &spool::Spool) -> Result<Vec<Row>, SpoolError> {
    let files = spool.entries()?.into_iter().map(|entry| Row {
        name: entry.name.to_string(),
        kind: match entry.kind {
            Kind::Window => "window",
            Kind::Held => "held",
            Kind::Live => "live",
            Kind::Leftover => "leftover",
        },
        bytes: entry.bytes,
        modified_ns: entry
            .modified
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)),
    });
    let entry = |kind| {
        move |name: Name| Row {
            name: name.to_string(),
            kind,
            bytes: 0,
            modified_ns: 0,
        }
    };
    let waiting = spool.requests()?.into_iter().map(entry("request"));
    let done = spool.finished()?.into_iter().map(entry("done"));
    Ok(files.chain(waiting).chain(done).collect())
}
