//! Threads that send each other work over channels, with a trait object, a panic that is caught, and iterators.
//! Its output depends on nothing but its argument (messages).

use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;

trait Rule: Send + Sync {
    fn apply(&self, x: u64) -> u64;
}
struct Triple;
struct Halve;
impl Rule for Triple {
    fn apply(&self, x: u64) -> u64 {
        x * 3 + 1
    }
}
impl Rule for Halve {
    fn apply(&self, x: u64) -> u64 {
        assert!(!x.is_multiple_of(17), "seventeen");
        x / 2
    }
}

fn main() {
    let messages: u64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(40);
    panic::set_hook(Box::new(|_| {}));
    let rules: Arc<[Box<dyn Rule>]> = Arc::from([Box::new(Halve) as Box<dyn Rule>, Box::new(Triple)]);
    let (give, take) = mpsc::channel::<u64>();
    let take = Arc::new(Mutex::new(take));
    let (report, reports) = mpsc::sync_channel::<(u64, u64)>(4);
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let (take, report, rules) = (take.clone(), report.clone(), rules.clone());
            thread::spawn(move || loop {
                let next = take.lock().expect("no one panics with the lock").recv();
                let Ok(x) = next else { return };
                let done = panic::catch_unwind(AssertUnwindSafe(|| {
                    let steps = (0..20).fold(x, |x, _| rules[(x & 1) as usize].apply(x));
                    format!("{steps:x}").bytes().map(u64::from).sum::<u64>()
                }));
                if report.send((x, done.unwrap_or(1))).is_err() {
                    return;
                }
            })
        })
        .collect();
    drop(report);
    let sender = thread::spawn(move || (1..=messages).for_each(|x| give.send(x).expect("the workers listen")));
    let all: BTreeMap<u64, u64> = reports.iter().collect();
    sender.join().expect("the sender ends");
    for worker in workers {
        worker.join().expect("the worker ends");
    }
    println!("channels {} {}", all.len(), all.values().enumerate().map(|(at, sum)| at as u64 * sum).sum::<u64>());
}
