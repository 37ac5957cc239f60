//! References between resources: RFC 3986, as far as `$id` and `$ref` need it.

/// The parts of a reference without its fragment.
struct Parts<'a> {
    scheme: Option<&'a str>,
    authority: Option<&'a str>,
    path: &'a str,
    query: Option<&'a str>,
}

/// Splits a reference into the part before `#`, and its fragment.
pub(crate) fn split_fragment(reference: &str) -> (&str, &str) {
    reference.split_once('#').unwrap_or((reference, ""))
}

/// The resource that `reference` names, relative to `base`; both without a fragment.
pub(crate) fn resolve(base: &str, reference: &str) -> String {
    let (base, given) = (parts(base), parts(reference));
    let (authority, path, query) = if given.scheme.is_some() || given.authority.is_some() {
        (given.authority, remove_dots(given.path), given.query)
    } else if given.path.is_empty() {
        (base.authority, base.path.to_owned(), given.query.or(base.query))
    } else if given.path.starts_with('/') {
        (base.authority, remove_dots(given.path), given.query)
    } else {
        let folder = match base.path.rfind('/') {
            Some(last) => base.path.get(..=last).unwrap_or_default(),
            None if base.authority.is_some() => "/",
            None => "",
        };
        (base.authority, remove_dots(&format!("{folder}{}", given.path)), given.query)
    };
    let mut out = given.scheme.or(base.scheme).map_or_else(String::new, |scheme| format!("{scheme}:"));
    out.extend(authority.map(|authority| format!("//{authority}")));
    out.push_str(&path);
    out.extend(query.map(|query| format!("?{query}")));
    out
}

fn parts(reference: &str) -> Parts<'_> {
    let is_scheme = |text: &&str| {
        text.starts_with(|char: char| char.is_ascii_alphabetic())
            && text.chars().all(|char| char.is_ascii_alphanumeric() || ['+', '-', '.'].contains(&char))
    };
    let scheme = reference.split_once(':').map(|(scheme, _)| scheme).filter(is_scheme);
    let rest = scheme.and_then(|scheme| reference.get(scheme.len() + 1..)).unwrap_or(reference);
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    match rest.strip_prefix("//") {
        Some(rest) => {
            let end = rest.find('/').unwrap_or(rest.len());
            let (authority, path) = rest.split_at_checked(end).unwrap_or((rest, ""));
            Parts { scheme, authority: Some(authority), path, query }
        }
        None => Parts { scheme, authority: None, path: rest, query },
    }
}

/// Removes the segments `.` and `..` of a path.
fn remove_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let (is_absolute, inside) = path.strip_prefix('/').map_or((false, path), |inside| (true, inside));
    for segment in inside.split('/') {
        match segment {
            "." => {}
            ".." => {
                kept.pop();
            }
            _ => kept.push(segment),
        }
    }
    let is_folder = inside.ends_with("/.") || inside.ends_with("/..") || [".", ".."].contains(&inside);
    let slash = if is_absolute { "/" } else { "" };
    let end = if is_folder && !kept.is_empty() { "/" } else { "" };
    format!("{slash}{}{end}", kept.join("/"))
}

/// Decodes `%XX`. `None`: not an encoding of UTF-8.
pub(crate) fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let code = digit()? * 16 + digit()?;
        out.push(u8::try_from(code).ok()?);
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::{percent_decode, resolve, split_fragment};

    /// The examples of RFC 3986, section 5.4, and what schemas have beside them.
    #[test]
    fn references_are_resolved_as_rfc_3986_says() {
        for (base, reference, expected) in [
            ("http://a/b/c/d;p?q", "g:h", "g:h"),
            ("http://a/b/c/d;p?q", "g", "http://a/b/c/g"),
            ("http://a/b/c/d;p?q", "./g", "http://a/b/c/g"),
            ("http://a/b/c/d;p?q", "g/", "http://a/b/c/g/"),
            ("http://a/b/c/d;p?q", "/g", "http://a/g"),
            ("http://a/b/c/d;p?q", "//g", "http://g"),
            ("http://a/b/c/d;p?q", "?y", "http://a/b/c/d;p?y"),
            ("http://a/b/c/d;p?q", "g?y", "http://a/b/c/g?y"),
            ("http://a/b/c/d;p?q", "", "http://a/b/c/d;p?q"),
            ("http://a/b/c/d;p?q", ".", "http://a/b/c/"),
            ("http://a/b/c/d;p?q", "..", "http://a/b/"),
            ("http://a/b/c/d;p?q", "../g", "http://a/b/g"),
            ("http://a/b/c/d;p?q", "../../../g", "http://a/g"),
            ("http://a/b/c/d;p?q", "g;x=1/../y", "http://a/b/c/y"),
            ("http://a", "g", "http://a/g"),
            ("", "Node", "Node"),
            ("Node", "Node", "Node"),
            ("Node", "Other", "Other"),
            ("dir/Node", "Other", "dir/Other"),
            ("urn:uuid:1", "urn:uuid:2", "urn:uuid:2"),
            ("urn:uuid:1", "", "urn:uuid:1"),
        ] {
            assert_eq!(resolve(base, reference), expected, "{base} {reference}");
        }
        assert_eq!(split_fragment("a#b"), ("a", "b"));
        assert_eq!(split_fragment("#"), ("", ""));
        assert_eq!(percent_decode("a%25b%22%C3%A9").as_deref(), Some("a%b\"é"));
        for bad in ["%", "%2", "%zz", "%FF"] {
            assert_eq!(percent_decode(bad), None, "{bad}");
        }
    }
}
