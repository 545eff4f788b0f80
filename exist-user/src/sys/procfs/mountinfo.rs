//! `/proc/self/mountinfo`: what is mounted where, as this process sees it.

use std::{ffi::OsString, os::unix::ffi::OsStringExt, path::PathBuf};

use super::unescape;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountLine {
    /// Which folder of the file system is mounted. For cgroup mounts as the reader's cgroup namespace shows it.
    pub root: PathBuf,
    pub mount_point: PathBuf,
    /// `cgroup2`, `cgroup`, …
    pub fs_type: String,
    /// Options of the file system: a version 1 cgroup mount names its controllers here.
    pub super_options: Vec<String>,
}

/// All lines that can be understood, in the order of mounting: of two at one mount point the later one is seen.
#[must_use]
pub fn parse_mountinfo(bytes: &[u8]) -> Vec<MountLine> {
    bytes.split(|&b| b == b'\n').filter_map(line).collect()
}

// ID parent major:minor root mount_point options [optional fields…] - type source super_options
fn line(line: &[u8]) -> Option<MountLine> {
    let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
    let dash = 6 + fields.get(6..)?.iter().position(|&f| f == b"-")?;
    let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(unescape(bytes, b" \t\n\\#")));
    Some(MountLine {
        root: path(fields.get(3)?),
        mount_point: path(fields.get(4)?),
        fs_type: String::from_utf8_lossy(fields.get(dash + 1)?).into_owned(),
        super_options: String::from_utf8_lossy(fields.get(dash + 3)?)
            .split(',')
            .map(Into::into)
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_with_and_without_optional_fields() {
        let text = b"29 23 0:26 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n\
            30 23 0:27 /docker/x /a\\040b ro shared:9 master:1 - cgroup none rw,cpu,cpuacct\n";
        let got = parse_mountinfo(text);
        assert_eq!(got.len(), 2);
        assert_eq!((got[0].fs_type.as_str(), got[0].root.to_str()), ("cgroup2", Some("/")));
        assert_eq!(got[1].root.to_str(), Some("/docker/x"));
        assert_eq!(got[1].mount_point.to_str(), Some("/a b"));
        assert_eq!(got[1].super_options, ["rw", "cpu", "cpuacct"]);
    }

    #[test]
    fn what_is_no_line_is_left_out() {
        let text = b"29 23 0:26 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";
        for cut in 0..text.len() {
            assert!(parse_mountinfo(&text[..cut]).len() <= 1);
        }
        assert_eq!(parse_mountinfo(b"\n1 2 3\n1 2 3 4 5 6 7 8 9\n"), []);
    }
}
