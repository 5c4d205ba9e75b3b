//! HTTP/1.1 (RFC 9112), as much as it takes to serve one document.

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// Incomplete.
    Unfinished,
    Get,
    Head,
    /// Another method than GET and HEAD.
    OtherMethod,
    /// No request of HTTP/1.x.
    Malformed,
}

/// Reads what came so far. The path and the header fields do not matter.
pub(crate) fn read(bytes: &[u8]) -> Question {
    // A lone line feed ends a line, too (section 2.2).
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n').map_while(|line| {
        let line = line.strip_suffix(b"\n")?;
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    });
    let Some(first) = lines.next() else { return Question::Unfinished };
    let Some(method) = method(first) else { return Question::Malformed };
    if !lines.any(<[u8]>::is_empty) {
        return Question::Unfinished;
    }
    match method {
        b"GET" => Question::Get,
        b"HEAD" => Question::Head,
        _ => Question::OtherMethod,
    }
}

/// The method of a request line (section 3): `METHOD target HTTP/1.x`.
fn method(line: &[u8]) -> Option<&[u8]> {
    let mut words = line.split(|byte| *byte == b' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let is_token = !method.is_empty()
        && method.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte));
    let is_target = !target.is_empty() && target.iter().all(u8::is_ascii_graphic);
    let is_version = version.strip_prefix(b"HTTP/1.").is_some_and(|minor| matches!(minor, [b'0'..=b'9']));
    (is_token && is_target && is_version && words.next().is_none()).then_some(method)
}

/// The whole answer; `text` is made only if it is asked for.
pub(crate) fn answer(question: Question, text: impl FnOnce() -> String) -> Vec<u8> {
    const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    const PLAIN: &str = "text/plain; charset=utf-8";
    let (status, kind, text) = match question {
        Question::Get | Question::Head => ("200 OK", METRICS, text()),
        Question::OtherMethod => (
            "405 Method Not Allowed\r\nAllow: GET, HEAD",
            PLAIN,
            "The metrics can only be read: use GET.\n".to_owned(),
        ),
        Question::Unfinished | Question::Malformed => (
            "400 Bad Request",
            PLAIN,
            "This is no request of HTTP/1.1 such as \"GET /metrics HTTP/1.1\", or too long a one.\n"
                .to_owned(),
        ),
    };
    let body = if question == Question::Head { "" } else { &text };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        text.len()
    )
    .into_bytes()
}
