//! From a container's ID to its cgroups, by the names in the cgroup file system alone: no engine is asked.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::{
    container_id::{self, MIN_PREFIX},
    error::TargetError,
    read_error, searched,
};
use crate::sys::{
    cgroupfs::{Cgroup, Mount, Mounts},
    procfs,
    roots::Roots,
};

/// A container, and its cgroups in the hierarchy that decides.
pub struct Container<'a> {
    /// The whole ID.
    pub id: String,
    pub mount: &'a Mount,
    /// Usually one; none is below another.
    pub paths: Vec<PathBuf>,
}

/// Finds the container that `wanted` names: a whole ID, a prefix that only one has, or a name that its user gave it.
pub fn find<'a>(roots: &Roots, mounts: &'a Mounts, wanted: &str) -> Result<Container<'a>, TargetError> {
    if wanted.len() < MIN_PREFIX {
        return Err(TargetError::TooShort(wanted.into()));
    }
    let mut trees = Vec::new();
    for mount in mounts.iter() {
        trees.push((mount, mount.walk().map_err(|e| read_error(&mount.dir, e))?));
    }
    let mut found = select(&trees, |path| {
        container_id::in_component(last(path)?)
            .filter(|id| id.starts_with(wanted))
            .map(Into::into)
    });
    // A name is looked for only when no ID begins so: IDs come from engines, names from users.
    if found.is_empty() {
        found = select(&trees, |path| {
            container_id::is_named(path, wanted).then(|| wanted.into())
        });
    }
    if let Some(exact) = found.remove_entry(wanted) {
        found = BTreeMap::from([exact]);
    }
    if found.len() > 1 {
        let first_path = |places: Vec<(&Mount, Vec<PathBuf>)>| places.into_iter().flat_map(|(_, paths)| paths).next();
        let candidates = found
            .into_iter()
            .filter_map(|(id, places)| Some((id, first_path(places)?)))
            .collect();
        return Err(TargetError::Ambiguous {
            id: wanted.into(),
            candidates,
        });
    }
    let Some((id, places)) = found.pop_first() else {
        return Err(not_found(roots, mounts, &trees, wanted));
    };
    let (mount, paths) = decide(places).ok_or_else(|| TargetError::Gone {
        what: format!("container {id}"),
    })?;
    Ok(Container { id, mount, paths })
}

type Tree<'a> = (&'a Mount, Vec<PathBuf>);

/// For each ID its cgroups in each hierarchy, without those below another one of the same ID.
fn select<'a>(trees: &[Tree<'a>], id_of: impl Fn(&Path) -> Option<String>) -> BTreeMap<String, Vec<Tree<'a>>> {
    let mut found: BTreeMap<String, Vec<Tree<'a>>> = BTreeMap::new();
    for (mount, paths) in trees {
        let mut here: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        for path in paths {
            let Some(id) = id_of(path) else { continue };
            let own = here.entry(id).or_default();
            // A walk lists parents first.
            if !own.iter().any(|top| path.starts_with(top)) {
                own.push(path.clone());
            }
        }
        for (id, paths) in here {
            found.entry(id).or_default().push((*mount, paths));
        }
    }
    found
}

/// The hierarchy that decides: the first, in the order of [`Mounts::iter`], in which the container has a cgroup with
/// processes in it. (On a hybrid host the version 2 one may exist and be empty.) A container without any is followed in the first.
fn decide(places: Vec<Tree<'_>>) -> Option<Tree<'_>> {
    let populated = |(mount, paths): &Tree<'_>| {
        paths
            .iter()
            .any(|path| Cgroup::open(mount, path).and_then(|c| c.populated()).unwrap_or(false))
    };
    let at = places.iter().position(populated).unwrap_or(0);
    places.into_iter().nth(at)
}

fn not_found(roots: &Roots, mounts: &Mounts, trees: &[Tree<'_>], wanted: &str) -> TargetError {
    let searched = searched(mounts);
    let running = procfs::processes(roots)
        .unwrap_or_default()
        .into_iter()
        .find_map(|pid| {
            let lines = procfs::Process::new(roots, pid).cgroups().ok()?;
            let line = lines
                .into_iter()
                .find(|l| container_id::in_path(&l.path).is_some_and(|id| id.starts_with(wanted)))?;
            Some((pid, line.path))
        });
    match running {
        Some((pid, path)) => TargetError::NotMounted {
            id: wanted.into(),
            pid,
            path,
            searched,
        },
        None => TargetError::NotFound {
            id: wanted.into(),
            cgroups: trees.iter().map(|(_, paths)| paths.len()).sum(),
            containers: select(trees, |path| container_id::in_component(last(path)?).map(Into::into)).len(),
            searched,
        },
    }
}

fn last(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}
