//! What the BPF programs warn of: in words, once of a kind on a CPU. Needs root and the BPF programs.

#![allow(clippy::unwrap_used)]

mod bed;

use std::{collections::BTreeSet, fs, num::NonZeroU32, os::unix::fs::MetadataExt as _};

use exist_trace::file::model::LossKind;
use exist_user::hook::{Event, HookOptions, Role};

/// Cgroups made below the target, for which there is no room.
const MADE: u64 = 20;

#[test]
fn of_a_target_with_too_many_cgroups() {
    for bed in bed::beds("warnings") {
        let options = HookOptions {
            max_cgroups: NonZeroU32::MIN,
            ..HookOptions::new(bed.hierarchy.clone())
        };
        let Some(mut hook) = bed::load(&options) else { return };
        hook.attach().unwrap();
        hook.insert_cgroup(bed.id(), Role::Root).unwrap();
        hook.begin().unwrap();
        assert_eq!(hook.warnings(), [""; 0], "{:?}: nothing has happened", bed.hierarchy);

        let below: Vec<_> = (0..MADE).map(|n| bed.dir.join(n.to_string())).collect();
        below.iter().for_each(|dir| fs::create_dir(dir).unwrap());
        let said = hook.warnings();
        let cpus: BTreeSet<&str> = said.iter().map(|text| text.split_once(": ").unwrap().0).collect();
        println!("{:?}: {said:?}", bed.hierarchy);
        assert!(
            !said.is_empty() && cpus.len() == said.len(),
            "one for each CPU: {said:?}"
        );
        for text in &said {
            assert!(
                text.starts_with("CPU ") && text.contains("no room for cgroup "),
                "{text}"
            );
        }
        // The first one that did not fit is named.
        let first = fs::metadata(&below[0]).unwrap().ino();
        assert!(said[0].contains(&format!("no room for cgroup {first} ")), "{said:?}");

        below.iter().for_each(|dir| bed::remove(dir));
        hook.end().unwrap();
        // Every one is counted, however few are told in words.
        let mut lost = 0;
        let take = |event| match event {
            Event::Loss(loss) if loss.kind == LossKind::MapFull => lost += loss.records,
            Event::Wait(wait) => panic!("{wait:?}"),
            Event::Loss(loss) => panic!("{loss:?}"),
            Event::Record(_) => {}
        };
        hook.counters(take).unwrap();
        assert_eq!(lost, MADE);
        assert_eq!(hook.warnings(), [""; 0], "removing them is nothing to warn of");
    }
}
