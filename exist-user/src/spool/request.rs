//! Requests: what somebody else wants recorded.

use exist_trace::session::{Session, Target};

/// More than a session with a CPU list of the largest machine takes.
pub const MOST_BYTES: u64 = 1 << 20;

/// Reads a request: a session as JSON.
///
/// # Errors
/// For whoever wrote it: no session, a command (who may write requests may not thereby run programs as root), or one
/// without an end.
pub fn parse(bytes: &[u8]) -> Result<Session, String> {
    let session: Session = serde_json::from_slice(bytes).map_err(|error| format!("not a session: {error}"))?;
    if matches!(session.target, Target::Command(_)) {
        return Err("a request cannot start a command: name a container, a cgroup or a process".to_owned());
    }
    match session.period_ns {
        None | Some(0) => Err("a request needs a length: period_ns".to_owned()),
        Some(_) => Ok(session),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_a_session_with_an_end_and_no_command() {
        let check = |text: &str, expect: Result<Target, &str>| match (parse(text.as_bytes()), expect) {
            (Ok(session), Ok(target)) => assert_eq!(session.target, target),
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            (got, expect) => panic!("{text}: {got:?} is not {expect:?}"),
        };
        check(r#"{"target":{"pid":7},"period_ns":1000}"#, Ok(Target::Pid(7)));
        check(r#"{"target":{"pid":7},"period_ns":null}"#, Err("needs a length"));
        check(r#"{"target":{"pid":7},"period_ns":0}"#, Err("needs a length"));
        check(
            r#"{"target":{"command":["sh"]},"period_ns":1}"#,
            Err("cannot start a command"),
        );
        check("", Err("not a session"));
        check(r#"{"target":{"pid":-7}}"#, Err("not a session"));
    }
}
