//! Container IDs in the names of cgroups.
//!
//! Takes: one component of a cgroup's path, or a whole path. Gives: the ID of the container that it belongs to.
//! Refuses: what only looks like one: UUIDs of desktop scopes, services of the engines themselves, and the cgroups of
//! conmon, which watches a container and is no part of it.
//!
//! | engine and driver | form |
//! | --- | --- |
//! | Docker, cgroupfs | `/docker/<id>` |
//! | Docker, systemd | `/system.slice/docker-<id>.scope`, perhaps `/init` and more below |
//! | Kubernetes, cgroupfs | `/kubepods/burstable/pod<uid>/<id>`, CRI-O: `crio-<id>` |
//! | Kubernetes, systemd | `/kubepods.slice/…-pod<uid_>.slice/cri-containerd-<id>.scope`, also with `kubelet-kubepods….slice` |
//! | containerd without the systemd driver on such a node | `/system.slice/containerd.service/kubepods-…slice:cri-containerd:<id>` |
//! | Podman | `/machine.slice/libpod-<id>.scope/container`, `/libpod_parent/libpod-<id>` |
//! | containerd's `ctr`, nerdctl | `/<namespace>/<id>`, where `ctr` takes any name as ID |
//! | Amazon ECS | `/ecs/<task>/<32 hex>-<number>` |

use std::path::Path;

/// Digits of an engine's container ID.
const ID_DIGITS: usize = 64;
/// Digits before the dash in ECS's.
const ECS_DIGITS: usize = 32;
/// The shortest prefix of an ID that is looked for.
pub const MIN_PREFIX: usize = 4;

/// The ID in one component, when this cgroup is a container's own.
#[must_use]
pub fn in_component(name: &str) -> Option<&str> {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    // `<slice>:<prefix>:<id>`, what the systemd driver is told, written as it is when the cgroupfs driver takes it.
    if let Some((slice_and_prefix, id)) = name.rsplit_once(':') {
        let known = slice_and_prefix.contains(".slice:") || is_engine_id(id);
        return (known && is_name(id)).then_some(id);
    }
    if is_engine_id(name) || is_ecs_id(name) {
        return Some(name);
    }
    let (prefix, id) = name.rsplit_once('-')?;
    let engine = !prefix.is_empty() && prefix.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
    (is_engine_id(id) && engine && !prefix.ends_with("conmon")).then_some(id)
}

/// The ID of the innermost container that a path leads into.
#[must_use]
pub fn in_path(path: &Path) -> Option<&str> {
    path.components()
        .rev()
        .find_map(|c| in_component(c.as_os_str().to_str()?))
}

/// Whether a cgroup with this path may be the container that a user named `id` himself: `/<namespace>/<id>` of `ctr`, or `<id>` in a pod.
#[must_use]
pub fn is_named(path: &Path, id: &str) -> bool {
    let unit = [".slice", ".service", ".scope", ".mount", ".socket", ".swap"];
    let is_unit = |name: &str| unit.iter().any(|u| name.ends_with(u));
    let mut up = path.components().rev().filter_map(|c| c.as_os_str().to_str());
    let (Some(name), Some(parent), grandparent) = (up.next(), up.next(), up.next()) else {
        return false;
    };
    let below_namespace = grandparent == Some("/") && !is_unit(parent) && parent != "/";
    name == id && is_name(id) && !is_unit(name) && (below_namespace || parent.starts_with("pod") && parent != "/")
}

fn is_engine_id(text: &str) -> bool {
    text.len() == ID_DIGITS && is_hex(text)
}

fn is_ecs_id(text: &str) -> bool {
    text.split_once('-').is_some_and(|(task, number)| {
        task.len() == ECS_DIGITS && is_hex(task) && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
    })
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// What containerd takes as an ID: letters and digits, joined by single `.`, `_` or `-`; at most 76 bytes.
fn is_name(text: &str) -> bool {
    text.len() <= 76
        && text
            .split(['.', '_', '-'])
            .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const B: &str = "b85a5a4eb0dc5e6c0c8fcb2b09ab9a4c9ed9b9a4ef9f0f0f9d0c3ab8a7d66b1f";

    fn check(path: &str, expect: Option<&str>) {
        let path = path.replace("<A>", A).replace("<B>", B);
        let expect = expect.map(|e| e.replace("<A>", A).replace("<B>", B));
        assert_eq!(in_path(Path::new(&path)), expect.as_deref(), "{path}");
    }

    #[test]
    fn every_engine_and_driver() {
        for path in [
            "/docker/<A>",
            "/docker/<A>/init.scope",
            "/system.slice/docker-<A>.scope",
            "/system.slice/docker-<A>.scope/init",
            "/user.slice/user-1000.slice/user@1000.service/user.slice/docker-<A>.scope",
            "/kubepods/burstable/pod8a2e17a5-94a5-4e3c-9e64-9f2a30cdd1ee/<A>",
            "/kubepods/besteffort/pod8a2e17a5-94a5-4e3c-9e64-9f2a30cdd1ee/<A>",
            "/kubepods/pod8a2e17a5-94a5-4e3c-9e64-9f2a30cdd1ee/crio-<A>",
            "/kubepods/besteffort/pod0fbaa36dd78dc6a5c7f5bb3bf1d6a2e4/<A>",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8a2e17a5_94a5_4e3c_9e64_9f2a30cdd1ee.slice/cri-containerd-<A>.scope",
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod8a2e17a5_94a5_4e3c_9e64_9f2a30cdd1ee.slice/crio-<A>.scope",
            "/kubepods.slice/kubepods-pod8a2e17a5_94a5_4e3c_9e64_9f2a30cdd1ee.slice/docker-<A>.scope",
            "/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod8a2e17a5_94a5_4e3c_9e64_9f2a30cdd1ee.slice/cri-containerd-<A>.scope",
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod1.slice/cri-containerd-<A>.scope/x",
            "/system.slice/containerd.service/kubepods-burstable-pod8a2e17a5_94a5_4e3c_9e64_9f2a30cdd1ee.slice:cri-containerd:<A>",
            "/machine.slice/libpod-<A>.scope",
            "/machine.slice/libpod-<A>.scope/container",
            "/libpod_parent/libpod-<A>",
            "/libpod_parent/libpod-<A>/container/user.slice",
            "/user.slice/user-1000.slice/user@1000.service/app.slice/x.service/libpod-payload-<A>",
            "/system.slice/nerdctl-<A>.scope",
            "/default/<A>",
            "/k8s.io/<A>",
            "/moby/<A>",
            "/ecs/2f0c1e7d8fd94e9d8d0b5b6e9c1a7c11/<A>",
            "/../../kubepods/burstable/pod8a2e17a5-94a5-4e3c-9e64-9f2a30cdd1ee/<A>",
            "/../<A>",
        ] {
            check(path, Some("<A>"));
        }
        check(
            "/ecs/2f0c1e7d8fd94e9d8d0b5b6e9c1a7c11/2f0c1e7d8fd94e9d8d0b5b6e9c1a7c11-3054012820",
            Some("2f0c1e7d8fd94e9d8d0b5b6e9c1a7c11-3054012820"),
        );
        check(
            "/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:web_1",
            Some("web_1"),
        );
    }

    #[test]
    fn the_last_match_counts() {
        check("/docker/<A>/docker/<B>", Some("<B>"));
        check("/docker/<A>/system.slice/docker-<B>.scope/init", Some("<B>"));
        check(
            "/docker/<A>/kubelet/kubepods/burstable/pod8a2e17a5-94a5-4e3c-9e64-9f2a30cdd1ee/<B>",
            Some("<B>"),
        );
        check(
            "/kubepods.slice/kubepods-pod1.slice/crio-<A>.scope/libpod_parent/libpod-<B>",
            Some("<B>"),
        );
        check("/docker/<A>/system.slice/containerd.service", Some("<A>"));
    }

    #[test]
    fn what_only_looks_like_one() {
        for path in [
            "",
            "/",
            "/../..",
            "/init.scope",
            "/system.slice/containerd.service",
            "/system.slice/docker.service",
            "/system.slice/docker.socket",
            "/system.slice/crio.service",
            "/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-firefox-5ed7f5a2.scope",
            "/user.slice/user-1000.slice/user@1000.service/apps.slice/vte-spawn-5ed7f5a2-94a5-4e3c-9e64-9f2a30cdd1ee.scope",
            "/user.slice/user-1000.slice/session-2.scope",
            "/machine.slice/libpod-conmon-<A>.scope",
            "/system.slice/crio-conmon-<A>.scope",
            "/libpod_parent/conmon",
            "/libpod_parent/libpod-<A>x",
            "/kubepods/burstable/pod8a2e17a5-94a5-4e3c-9e64-9f2a30cdd1ee",
            "/kubepods/besteffort/pod0fbaa36dd78dc6a5c7f5bb3bf1d6a2e4",
            "/docker/0123456789abcdef",
            "/docker/<A>0",
            "/docker/0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF",
            "/x/5ed7f5a294a54e3c9e649f2a30cdd1ee",
            "/x/5ed7f5a294a54e3c9e649f2a30cdd1ee-",
            "/a:b:c",
            "/x.slice:cri-containerd:",
        ] {
            check(path, None);
        }
    }

    #[test]
    fn names_that_users_give() {
        for (path, id, expect) in [
            ("/default/web", "web", true),
            ("/k8s.io/web-1", "web-1", true),
            ("/kubepods/besteffort/pod1234/web", "web", true),
            ("/default/web/init", "init", false),
            ("/default/web", "we", false),
            ("/web", "web", false),
            ("/system.slice/web", "web", false),
            ("/system.slice/containerd.service", "containerd.service", false),
            ("/default/init.scope", "init.scope", false),
            ("/default/..", "..", false),
            ("/default/-x", "-x", false),
        ] {
            assert_eq!(is_named(Path::new(path), id), expect, "{path} {id}");
        }
    }

    #[test]
    fn no_bytes_are_too_odd() {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
        check("/docker/é-<A>/x", None);
        let path = [b"/\xff\xfe/", A.as_bytes(), b"/\xff"].concat();
        assert_eq!(in_path(Path::new(OsStr::from_bytes(&path))), Some(A));
    }
}
