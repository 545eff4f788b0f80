//! `/proc/PID/cgroup`: where a process stands in each hierarchy.

use std::{ffi::OsString, os::unix::ffi::OsStringExt, path::PathBuf};

use super::decimal;

/// One line: `number:controllers:path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLine {
    /// Number of the hierarchy; 0 is version 2.
    pub hierarchy: u32,
    /// Controllers of a version 1 hierarchy (`memory`; `name=systemd` for one without); none for version 2.
    pub controllers: Vec<String>,
    /// Path as the reader's cgroup namespace shows it: `/..` leads out of that namespace's root.
    pub path: PathBuf,
    /// The cgroup was removed while the process (a zombie) is still in it.
    pub deleted: bool,
}

/// All lines that can be understood. A path holds any byte but a newline, which `cgroup_mkdir` refuses.
#[must_use]
pub fn parse_cgroup(bytes: &[u8]) -> Vec<CgroupLine> {
    bytes.split(|&b| b == b'\n').filter_map(line).collect()
}

fn line(line: &[u8]) -> Option<CgroupLine> {
    let mut parts = line.splitn(3, |&b| b == b':');
    let hierarchy = u32::try_from(decimal(parts.next()?)?).ok()?;
    let controllers = std::str::from_utf8(parts.next()?).ok()?;
    let path = parts.next()?;
    if path.first() != Some(&b'/') {
        return None;
    }
    // proc_cgroup_show appends it to dead cgroups; a live one may be named so, which version 2 alone can mistake.
    let (path, deleted) = match path.strip_suffix(b" (deleted)") {
        Some(live) => (live, true),
        None => (path, false),
    };
    Some(CgroupLine {
        hierarchy,
        controllers: controllers
            .split(',')
            .filter(|c| !c.is_empty())
            .map(Into::into)
            .collect(),
        path: PathBuf::from(OsString::from_vec(path.to_vec())),
        deleted,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], expect: &[(u32, &[&str], &str, bool)]) {
        let got = parse_cgroup(bytes);
        let got: Vec<_> = got
            .iter()
            .map(|l| {
                let controllers: Vec<&str> = l.controllers.iter().map(String::as_str).collect();
                (
                    l.hierarchy,
                    controllers,
                    l.path.to_string_lossy().into_owned(),
                    l.deleted,
                )
            })
            .collect();
        let expect: Vec<_> = expect
            .iter()
            .map(|&(number, controllers, path, deleted)| (number, controllers.to_vec(), path.to_owned(), deleted))
            .collect();
        assert_eq!(got, expect, "{}", String::from_utf8_lossy(bytes));
    }

    #[test]
    fn lines_of_all_hierarchies() {
        check(b"", &[]);
        check(b"0::/\n", &[(0, &[], "/", false)]);
        check(b"0::/../..", &[(0, &[], "/../..", false)]);
        check(
            b"9:name=systemd:/a\n4:cpu,cpuacct:/docker/x\n0::/system.slice/a:b:c\n",
            &[
                (9, &["name=systemd"], "/a", false),
                (4, &["cpu", "cpuacct"], "/docker/x", false),
                (0, &[], "/system.slice/a:b:c", false),
            ],
        );
        check(b"0::/gone (deleted)\n", &[(0, &[], "/gone", true)]);
        check(b"0::/bad\xff\n", &[(0, &[], "/bad\u{fffd}", false)]);
    }

    #[test]
    fn what_is_no_line_is_left_out() {
        check(
            b"\n\nx:y:/z\n-1::/\n0:\n0::\n0::relative\n99999999999::/\n1:\xff:/\n1:pids:/ok",
            &[(1, &["pids"], "/ok", false)],
        );
    }
}
