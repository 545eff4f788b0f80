use std::{fs, os::unix::fs::MetadataExt};

use super::*;

const A: &str = "aaaa456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const B: &str = "aaaab5a5a4eb0dc5e6c0c8fcb2b09ab9a4c9ed9b9a4ef9f0f0f9d0c3ab8a7d66";
const C: &str = "cccc456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// A node in a temporary folder: `proc` and `cg`, with `<A>`, `<B>`, `<C>` in paths standing for IDs.
struct Node {
    dir: tempfile::TempDir,
}

/// How the node's hierarchies are mounted.
#[derive(Clone, Copy)]
enum Kind {
    V2,
    V1,
    Hybrid,
}

fn ids(text: &str) -> String {
    text.replace("<A>", A).replace("<B>", B).replace("<C>", C)
}

impl Node {
    /// A node with these cgroups, each with the PIDs in it: `memory/docker/<A> 5`, `unified/x`.
    fn new(kind: Kind, cgroups: &str) -> Self {
        let node = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let cg = fs::canonicalize(node.dir.path()).unwrap().join("cg");
        let line = |dir: &str, fs_type: &str, options: &str| {
            format!("1 0 0:1 / {} rw - {fs_type} none rw{options}\n", cg.join(dir).display())
        };
        let v1: String = ["cpu", "pids", "memory"]
            .map(|c| line(c, "cgroup", &format!(",{c}")))
            .concat();
        let mountinfo = match kind {
            Kind::V2 => line("", "cgroup2", "").replace("/cg/ ", "/cg "),
            Kind::V1 => v1,
            Kind::Hybrid => v1 + &line("unified", "cgroup2", ""),
        };
        node.file("proc/self/mountinfo", &mountinfo);
        // The tests may run in a container: this one's namespace cannot be told.
        node.file("proc/1/comm", "init\n");
        node.file("proc/self/cgroup", "4:memory:/\n8:pids:/\n1:cpu:/\n0::/\n");
        for dir in ["cpu", "pids", "memory", "unified"] {
            fs::create_dir_all(cg.join(dir)).unwrap();
        }
        for line in cgroups.lines().map(str::trim).filter(|l| !l.is_empty()) {
            let mut words = line.split(' ');
            let path = words.next().unwrap();
            let pids: String = words.map(|w| format!("{w}\n")).collect();
            node.file(&format!("cg/{path}/cgroup.procs"), &pids);
        }
        node
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.dir.path().join(ids(path).trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, ids(text)).unwrap();
    }

    fn resolve(&self, target: &Target) -> Result<Resolved, TargetError> {
        let root = fs::canonicalize(self.dir.path()).unwrap();
        resolve(
            &Roots {
                proc: root.join("proc"),
                cgroup: root.join("cg"),
            },
            target,
        )
    }
}

fn container(id: &str) -> Target {
    Target::Container(ids(id))
}

/// `expect`: `hierarchy path…  container`, or words of the error.
fn check(node: &Node, target: &Target, expect: Result<(&str, &[&str], Option<&str>), &str>) {
    match (node.resolve(target), expect) {
        (Ok(got), Ok((hierarchy, paths, container))) => {
            let got_paths: Vec<_> = got
                .roots
                .iter()
                .map(|r| r.path().to_string_lossy().into_owned())
                .collect();
            assert_eq!(
                (got.hierarchy.to_string().as_str(), got_paths),
                (hierarchy, paths.iter().map(|p| ids(p)).collect())
            );
            assert_eq!(got.container, container.map(ids), "{target:?}");
            let mount = node.dir.path().join("cg").join(match hierarchy {
                "cgroup2" if node.dir.path().join("cg/unified/cgroup.procs").exists() => "unified",
                "cgroup2" => "",
                v1 => v1,
            });
            for root in &got.roots {
                let dir = mount.join(root.path().strip_prefix("/").unwrap());
                assert_eq!(root.id(), fs::metadata(dir).unwrap().ino());
            }
            let header = got.header();
            assert_eq!(
                (header.hierarchy.as_str(), header.cgroups.len()),
                (hierarchy, got.roots.len())
            );
        }
        (Err(got), Err(words)) => {
            let text = got.to_string();
            for word in words.split(" | ") {
                assert!(text.contains(&ids(word)), "{text}\ndoes not say {word}");
            }
        }
        (got, expect) => panic!("{target:?}: got {got:?}\nexpected {expect:?}"),
    }
}

#[test]
fn a_container_by_id_and_by_prefix() {
    let node = Node::new(Kind::V2, &ids("docker/<A> 5\ndocker/<B> 6\ndocker/<C> 7\nx/<C>y 8"));
    check(&node, &container("<A>"), Ok(("cgroup2", &["/docker/<A>"], Some("<A>"))));
    check(
        &node,
        &container("aaaab"),
        Ok(("cgroup2", &["/docker/<B>"], Some("<B>"))),
    );
    check(
        &node,
        &container("cccc"),
        Ok(("cgroup2", &["/docker/<C>"], Some("<C>"))),
    );
    check(
        &node,
        &container("aaaa"),
        Err("ambiguous | \n  <A>  /docker/<A> | \n  <B>  /docker/<B>"),
    );
    check(&node, &container("ccc"), Err("too short | 4 characters"));
    check(
        &node,
        &container("dddd"),
        Err("no container \"dddd\" | searched 11 cgroups with 3 containers | /cg (cgroup2)"),
    );
    check(&node, &container("../docker"), Err("no container"));
}

#[test]
fn the_version_2_cgroup_decides_when_it_is_the_containers_own() {
    let both = Node::new(Kind::Hybrid, &ids("unified\nunified/docker/<A> 5\nmemory/docker/<A> 5"));
    check(&both, &container("<A>"), Ok(("cgroup2", &["/docker/<A>"], Some("<A>"))));
    let v1_only = Node::new(
        Kind::Hybrid,
        &ids("unified 5\npids/docker/<A> 5\nmemory/docker/<A> 5\ncpu/docker/<A> 5"),
    );
    check(
        &v1_only,
        &container("<A>"),
        Ok(("memory", &["/docker/<A>"], Some("<A>"))),
    );
    let empty_v2 = Node::new(Kind::Hybrid, &ids("unified\nunified/docker/<A>\npids/docker/<A> 5"));
    check(
        &empty_v2,
        &container("<A>"),
        Ok(("pids", &["/docker/<A>"], Some("<A>"))),
    );
    let all_empty = Node::new(Kind::V1, &ids("memory/docker/<A>\npids/docker/<A>"));
    check(
        &all_empty,
        &container("<A>"),
        Ok(("memory", &["/docker/<A>"], Some("<A>"))),
    );
    let no_memory = Node::new(Kind::V1, &ids("memory 5\ncpu/docker/<A> 5"));
    check(
        &no_memory,
        &container("<A>"),
        Ok(("cpu", &["/docker/<A>"], Some("<A>"))),
    );
}

#[test]
fn what_is_below_a_container_is_its_own() {
    let node = Node::new(
        Kind::V2,
        &ids(
            "system.slice/docker-<A>.scope/init 5\nsystem.slice/docker-<A>.scope/docker/<C> 6\n\
            machine.slice/libpod-<B>.scope/container 7\nmachine.slice/libpod-conmon-<B>.scope 8\nelsewhere/libpod-<B> 9",
        ),
    );
    let scope = "/system.slice/docker-<A>.scope";
    check(&node, &container("<A>"), Ok(("cgroup2", &[scope], Some("<A>"))));
    assert_eq!(node.resolve(&container("<A>")).unwrap().cgroup_ids().len(), 4);
    check(
        &node,
        &container("<C>"),
        Ok(("cgroup2", &[&format!("{scope}/docker/<C>")], Some("<C>"))),
    );
    // Two cgroups of one container, and not its conmon's.
    let mut both = node.resolve(&container("<B>")).unwrap();
    both.roots.sort_by_key(|r| r.path().to_owned());
    let paths: Vec<_> = both
        .roots
        .iter()
        .map(|r| r.path().to_string_lossy().into_owned())
        .collect();
    assert_eq!(
        paths,
        ["/elsewhere/libpod-<B>", "/machine.slice/libpod-<B>.scope"].map(ids)
    );
}

#[test]
fn a_container_that_its_user_named() {
    let node = Node::new(
        Kind::V2,
        &ids("default/web-1 5\ndefault/<A> 6\nsystem.slice/containerd.service 7"),
    );
    check(
        &node,
        &container("web-1"),
        Ok(("cgroup2", &["/default/web-1"], Some("web-1"))),
    );
    check(&node, &container("web-"), Err("no container"));
    check(&node, &container("containerd.service"), Err("no container"));
}

#[test]
fn a_container_outside_of_what_is_mounted() {
    let node = Node::new(Kind::V2, "x 5");
    node.file("proc/77/cgroup", "0::/../kubepods/pod1/<A>\n");
    check(
        &node,
        &container("aaaa"),
        Err("process 77 | /../kubepods/pod1/<A> | --cgroup-root"),
    );
    let nothing = Node::new(Kind::V2, "");
    nothing.file("proc/self/mountinfo", "");
    check(&nothing, &container("aaaa"), Err("no cgroup hierarchy | --cgroup-root"));
}

#[test]
fn a_cgroup_by_path() {
    let node = Node::new(
        Kind::Hybrid,
        &ids("unified\nunified/a/b 5\nmemory/docker/<A> 5\npids/a/b 5"),
    );
    let at = |path: &str| Target::Cgroup(ids(path));
    check(&node, &at("/a/b"), Ok(("cgroup2", &["/a/b"], None)));
    check(&node, &at("a/b/"), Ok(("cgroup2", &["/a/b"], None)));
    check(&node, &at("/"), Ok(("cgroup2", &["/"], None)));
    check(&node, &at("/docker/<A>"), Ok(("memory", &["/docker/<A>"], Some("<A>"))));
    let absolute = fs::canonicalize(node.dir.path()).unwrap().join("cg/pids/a/b");
    check(&node, &at(absolute.to_str().unwrap()), Ok(("pids", &["/a/b"], None)));
    for bad in ["/no/such", "../proc", "/a/../../../proc", "/a/b/cgroup.procs"] {
        check(
            &node,
            &at(bad),
            Err(&format!("no cgroup \"{bad}\" | (cgroup2) | (memory)")),
        );
    }
}

#[test]
fn a_process_by_its_id() {
    let node = Node::new(Kind::Hybrid, &ids("unified\nunified/a 5\nmemory/docker/<A>/x 6"));
    node.file("proc/5/cgroup", "4:memory:/docker/<A>/x\n0::/a\n");
    node.file("proc/6/cgroup", "4:memory:/docker/<A>/x\n8:pids:/\n0::/\n");
    node.file("proc/7/cgroup", "4:memory:/\n8:pids:/\n1:cpu:/\n0::/\n");
    node.file("proc/8/cgroup", "4:memory:/../x\n0::/../x\n");
    node.file("proc/9/cgroup", "0::/removed (deleted)\n");
    check(&node, &Target::Pid(5), Ok(("cgroup2", &["/a"], None)));
    check(&node, &Target::Pid(6), Ok(("memory", &["/docker/<A>/x"], Some("<A>"))));
    check(&node, &Target::Pid(7), Err("process 7 | --only-pid | --cgroup /"));
    check(&node, &Target::Pid(8), Err("process 8 | --cgroup-root"));
    check(&node, &Target::Pid(9), Err("process 9 ended"));
    check(&node, &Target::Pid(10), Err("no process 10"));
    assert_eq!(node.resolve(&Target::Pid(5)).unwrap().only_pid, None);
}

impl Node {
    /// A process, in whatever state, with these threads.
    fn process(&self, pid: u32, state: char, start_ticks: u64, threads: &[u32]) {
        let rest = format!("{state} 1 7 7 0 -1 0 0 0 0 0 5 6 0 0 20 0 1 0 {start_ticks} 1000 50");
        let more = "0 1 1 0 0 0 0 0 0 0 1 0 0 17 3 0 0 0 0 0 0 0 0 0 0 0 0 0";
        self.file(&format!("proc/{pid}/stat"), &format!("{pid} (x) {rest} {more}\n"));
        self.file(&format!("proc/{pid}/status"), &format!("Name:\tx\nTgid:\t{pid}\n"));
        let _ = fs::remove_dir_all(self.dir.path().join(format!("proc/{pid}/task")));
        for thread in threads {
            self.file(&format!("proc/{pid}/task/{thread}/comm"), "x\n");
        }
    }
}

#[test]
fn a_process_alone() {
    let node = Node::new(Kind::Hybrid, &ids("unified\nmemory/docker/<A>/x 6"));
    node.file("proc/6/cgroup", "4:memory:/docker/<A>/x\n8:pids:/\n0::/\n");
    node.file("proc/7/cgroup", "4:memory:/\n8:pids:/\n1:cpu:/\n0::/\n");
    node.process(6, 'S', 100, &[6]);
    node.process(7, 'R', 100, &[7, 9]);
    check(
        &node,
        &Target::OnlyPid(6),
        Ok(("memory", &["/docker/<A>/x"], Some("<A>"))),
    );
    check(&node, &Target::OnlyPid(7), Ok(("cgroup2", &["/"], None)));
    check(&node, &Target::OnlyPid(8), Err("no process 8"));
    // A thread of 7.
    node.process(9, 'S', 100, &[9]);
    node.file("proc/9/status", "Tgid:\t7\n");
    check(
        &node,
        &Target::OnlyPid(9),
        Err("9 is a thread of process 7 | --only-pid 7"),
    );

    let only = node.resolve(&Target::OnlyPid(7)).unwrap().only_pid.unwrap();
    let roots = Roots {
        proc: node.dir.path().join("proc"),
        cgroup: node.dir.path().join("cg"),
    };
    let lives = |state, start_ticks, threads: &[u32]| {
        node.process(7, state, start_ticks, threads);
        only.lives(&roots)
    };
    assert_eq!(only.pid.0, 7);
    assert!(lives('S', 100, &[7, 9]));
    // Its first thread has ended, another runs on.
    assert!(lives('Z', 100, &[7, 9]));
    assert!(!lives('Z', 100, &[7]), "its parent does not wait for it");
    assert!(!lives('R', 101, &[7]), "another process has the number");
    check(&node, &Target::OnlyPid(7), Ok(("cgroup2", &["/"], None)));
    node.process(7, 'Z', 100, &[7]);
    check(&node, &Target::OnlyPid(7), Err("process 7 has ended"));
    fs::remove_dir_all(node.dir.path().join("proc/7")).unwrap();
    assert!(!only.lives(&roots));
}

#[test]
fn a_target_empties() {
    let node = Node::new(Kind::V2, &ids("docker/<A>/x 5"));
    let got = node.resolve(&container("<A>")).unwrap();
    assert_eq!(got.presence().unwrap(), Presence::Populated);
    node.file("cg/docker/<A>/x/cgroup.procs", "");
    assert_eq!(got.presence().unwrap(), Presence::Empty);
    fs::remove_dir_all(node.dir.path().join(ids("cg/docker/<A>"))).unwrap();
    assert_eq!(got.presence().unwrap(), Presence::Gone);
    assert!(got.cgroup_ids().is_empty());
}
