//! The hook on this machine's kernel. Needs root and the BPF programs.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use exist_user::{
    hook::{Event, Hook, HookError, HookOptions, Role},
    sys::cgroupfs::Hierarchy,
};

/// The hook, or why it cannot run here.
fn load(options: &HookOptions) -> Option<Hook> {
    match Hook::load(options) {
        Ok(hook) => Some(hook),
        Err(e @ (HookError::NoObject | HookError::NotPermitted { .. } | HookError::NoBtf { .. })) => {
            println!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn the_programs_load_and_record() {
    let Some(mut hook) = load(&HookOptions::new(Hierarchy::V2)) else {
        return;
    };
    hook.attach().unwrap();
    hook.insert_cgroup(1, Role::Root).unwrap();
    hook.begin().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    hook.end().unwrap();
    let mut records = 0;
    hook.drain(|event| match event {
        Event::Record(_) => records += 1,
        Event::Loss(loss) => panic!("{loss:?}"),
    })
    .unwrap();
    assert!(records > 0);
}
