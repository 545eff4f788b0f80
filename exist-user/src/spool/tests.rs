//! Walks every step at which a process can be killed or the disk be full, and looks at what is left.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, SystemTime},
};

use super::{disk::fault, *};

const WINDOW_BYTES: &[u8] = b"a whole window";
/// Old windows that stand there from the start; two of them fit beside the new one.
const OLD: [&str; 3] = ["old-1", "old-2", "old-3"];
const QUOTA: Quota = Quota {
    bytes: 3 * WINDOW_BYTES.len() as u64,
    age: Duration::from_secs(3600),
};

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// A spool as somebody has left it: three windows, the oldest of them held, a request, and one that will be refused.
fn set_up(root: &Path) {
    let spool = Spool::open(root, QUOTA).unwrap();
    for (age, old) in (1..).zip(OLD.iter().rev()) {
        let path = spool.window(&name(old));
        fs::write(&path, WINDOW_BYTES).unwrap();
        let time = SystemTime::now() - Duration::from_secs(age * 100);
        fs::File::options()
            .append(true)
            .open(&path)
            .unwrap()
            .set_modified(time)
            .unwrap();
    }
    fs::write(root.join("done/old-1.json"), "{}").unwrap();
    let session = r#"{"target":{"pid":7},"period_ns":1000}"#;
    fs::write(root.join("requests/good.json"), session).unwrap();
    fs::write(root.join("requests/bad.json"), "{").unwrap();
}

/// Everything that a spool does, with a window written in two writes.
fn work(root: &Path) -> Result<(), SpoolError> {
    let spool = Spool::open(root, QUOTA)?;
    for request in spool.requests()? {
        if let Err(SpoolError::Request { reason, .. }) = spool.request(&request) {
            spool.refuse(&request, &reason)?;
            continue;
        }
        let path = spool.window(&request);
        let write = || -> io::Result<()> {
            let mut file = PartFile::create(&path)?;
            let (a, b) = WINDOW_BYTES.split_at(5);
            if let Err(error) = file.write_all(a).and_then(|()| file.write_all(b)) {
                file.discard();
                return Err(error);
            }
            file.finish()
        };
        write().map_err(|source| SpoolError::Io {
            what: "write",
            path: path.clone(),
            source,
        })?;
        spool.close(&request)?;
        spool.sweep(SystemTime::now(), Some(&request))?;
    }
    Ok(())
}

/// What has to hold at any moment. A reader counts the windows by their names.
fn check_any_moment(root: &Path, at: &str) {
    let names: Vec<_> = fs::read_dir(root.join("windows"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    for path in names
        .iter()
        .filter(|path| path.extension().is_some_and(|e| e == "exist"))
    {
        assert_eq!(
            fs::read(path).unwrap(),
            WINDOW_BYTES,
            "{at}: {} is half",
            path.display()
        );
    }
    assert!(root.join("windows/old-1.exist").exists(), "{at}: what is held is gone");
    let is_there = |path: &str| root.join(path).exists();
    for request in ["good", "bad"] {
        let (waits, done) = (format!("requests/{request}.json"), format!("done/{request}.json"));
        assert!(
            is_there(&waits) != is_there(&done),
            "{at}: {request} is nowhere, or counted twice"
        );
    }
    assert!(
        !is_there("done/good.json") || is_there("windows/good.exist"),
        "{at}: done without a window"
    );
    assert!(
        !is_there("done/bad.json") || is_there("done/bad.error"),
        "{at}: refused without a reason"
    );
}

/// What has to hold when the work was done again after whatever happened.
fn check_afterwards(root: &Path, at: &str) {
    // What a killed process has left is quiet for a minute before it goes.
    for part in fs::read_dir(root.join("windows")).unwrap().map(|e| e.unwrap().path()) {
        if part.extension().is_some_and(|e| e == "part") {
            let file = fs::File::options().append(true).open(&part).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(100)).unwrap();
        }
    }
    work(root).unwrap();
    Spool::open(root, QUOTA)
        .unwrap()
        .sweep(SystemTime::now(), Some(&name("good")))
        .unwrap();
    check_any_moment(root, at);
    let spool = Spool::open(root, QUOTA).unwrap();
    assert_eq!(spool.requests().unwrap(), [], "{at}");
    // A part that fits beside the windows may stay: what it holds can be read.
    let is_window = |entry: &Entry| matches!(entry.kind, Kind::Window | Kind::Held);
    let entries = spool.entries().unwrap();
    let windows: Vec<_> = entries
        .iter()
        .filter(|e| is_window(e))
        .map(|e| e.name.as_str())
        .collect();
    assert_eq!(windows, ["good", "old-1", "old-3"], "{at}");
    let done: BTreeSet<_> = spool.finished().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(done, ["bad", "good", "old-1"].map(String::from).into(), "{at}");
}

fn steps(root: &Path) -> Vec<&'static str> {
    let (send, steps) = std::sync::mpsc::channel();
    fault::watch(move |_, step| {
        let _ = send.send(step);
        Ok(())
    });
    work(root).unwrap();
    fault::unwatch();
    steps.iter().collect()
}

#[test]
fn a_window_is_durable_before_it_has_its_name() {
    let folder = tempfile::tempdir().unwrap();
    set_up(folder.path());
    let steps = steps(folder.path());
    check_afterwards(folder.path(), "undisturbed");
    let renames = steps.iter().enumerate().filter(|(_, step)| **step == "rename");
    let after: Vec<_> = renames.map(|(at, _)| (steps[at - 1], steps[at + 1])).collect();
    let folder_sync = "fsync of a folder";
    // The window or the reason, then the request from one folder to the other.
    let pair = [("fsync", folder_sync), (folder_sync, folder_sync)];
    assert_eq!(after, [pair, pair].concat(), "{steps:?}");
    assert_eq!(steps.iter().filter(|step| **step == "remove").count(), 1, "{steps:?}");
}

#[test]
fn a_full_disk_at_every_step() {
    let folder = tempfile::tempdir().unwrap();
    set_up(folder.path());
    let count = steps(folder.path()).len();
    assert!(count > 12, "{count}");
    for full_at in 0..count {
        for stays_full in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            set_up(folder.path());
            fault::watch(move |number, step| {
                let is_full = number == full_at || stays_full && number > full_at;
                // Removing needs no room.
                match is_full && step != "remove" {
                    true => Err(io::ErrorKind::StorageFull.into()),
                    false => Ok(()),
                }
            });
            let worked = work(folder.path());
            fault::unwatch();
            let at = format!("full at step {full_at}, stays full: {stays_full}");
            match worked {
                Ok(()) => {}
                Err(SpoolError::Io { source, .. }) => assert_eq!(source.kind(), io::ErrorKind::StorageFull, "{at}"),
                Err(other) => panic!("{at}: {other}"),
            }
            check_any_moment(folder.path(), &at);
            check_afterwards(folder.path(), &at);
        }
    }
}

const CHILD: &str = "EXIST_TEST_SPOOL";

/// Not a test of its own: what [`kill_9_at_every_step`] starts, in a process that it can kill.
#[test]
fn child() {
    let Some((root, at)) = std::env::var(CHILD).ok().and_then(|v| {
        Some((
            v.split_once(':')?.1.to_owned(),
            v.split_once(':')?.0.parse::<usize>().ok()?,
        ))
    }) else {
        return; // the test that starts it asserts
    };
    fault::watch(move |number, _| {
        if number == at {
            println!("\nhere");
            let _ = io::stdout().flush();
            loop {
                std::thread::park();
            }
        }
        Ok(())
    });
    work(Path::new(&root)).unwrap();
    println!("\nended");
}

#[test]
fn kill_9_at_every_step() {
    for at in 0.. {
        assert!(at < 100, "it has an end");
        let folder = tempfile::tempdir().unwrap();
        set_up(folder.path());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "spool::tests::child", "--nocapture"])
            .env(CHILD, format!("{at}:{}", folder.path().display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let said = out
            .by_ref()
            .lines()
            .map_while(Result::ok)
            .find(|line| line == "here" || line == "ended");
        child.kill().unwrap();
        child.wait().unwrap();
        check_any_moment(folder.path(), &format!("killed at step {at}"));
        check_afterwards(folder.path(), &format!("killed at step {at}"));
        match said.as_deref() {
            Some("here") => {}
            Some(_) => {
                assert!(at > 12, "{at} steps");
                return;
            }
            None => panic!("the child said nothing at step {at}"),
        }
    }
}

#[test]
fn a_window_that_is_written_or_held_stays_and_too_much_of_them_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    set_up(folder.path());
    let quota = Quota { bytes: 20, ..QUOTA };
    let spool = Spool::open(folder.path(), quota).unwrap();
    let mut live = PartFile::create(&spool.window(&name("new"))).unwrap();
    live.write_all(WINDOW_BYTES).unwrap();
    // It is locked: however long nothing is written, it is no leftover.
    let file = fs::File::options().append(true).open(live.part()).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(7000))
        .unwrap();
    let kinds: Vec<_> = spool
        .entries()
        .unwrap()
        .iter()
        .map(|e| (e.name.to_string(), e.kind))
        .collect();
    let expect = [
        ("new", Kind::Live),
        ("old-1", Kind::Held),
        ("old-2", Kind::Window),
        ("old-3", Kind::Window),
    ];
    assert_eq!(kinds, expect.map(|(name, kind)| (name.to_owned(), kind)));
    let error = spool.admit(SystemTime::now()).unwrap_err();
    let SpoolError::Full { over_bytes, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(over_bytes, 2 * WINDOW_BYTES.len() as u64 - 20);
    live.discard();
    fs::remove_file(folder.path().join("done/old-1.json")).unwrap();
    assert_eq!(spool.admit(SystemTime::now()).unwrap(), Swept::default());
}

#[test]
fn what_is_not_ours_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let quota = Quota {
        bytes: 0,
        age: Duration::ZERO,
    };
    let spool = Spool::open(folder.path(), quota).unwrap();
    let outside = folder.path().join("outside");
    fs::write(&outside, "x").unwrap();
    std::os::unix::fs::symlink(&outside, folder.path().join("windows/link.exist")).unwrap();
    std::os::unix::fs::symlink(&outside, folder.path().join("requests/link.json")).unwrap();
    fs::write(folder.path().join("windows/notes.txt"), "x").unwrap();
    fs::write(folder.path().join("windows/x.exist.y.part"), "x").unwrap();
    fs::write(folder.path().join("requests/.hidden.json"), "x").unwrap();
    assert_eq!(spool.sweep(SystemTime::now(), None).unwrap(), Swept::default());
    assert_eq!((spool.requests().unwrap(), spool.entries().unwrap()), (vec![], vec![]));
    assert_eq!(fs::read_dir(folder.path().join("windows")).unwrap().count(), 3);
}
