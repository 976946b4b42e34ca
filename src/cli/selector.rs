//! Parses label selectors and node names from the command line; errors count as wrong usage and
//! quote the argument.

use machinist_kube_api::keys::is_object_name;

/// The prefixes that kubectl prints before the name of a node.
const NODE_PREFIXES: [&str; 3] = ["node/", "nodes/", "no/"];

/// The name of a node, or `node/NAME`.
pub(super) fn node(text: &str) -> Result<String, String> {
    let name = NODE_PREFIXES
        .iter()
        .find_map(|kind| text.strip_prefix(kind));
    let name = name.unwrap_or(text);
    match is_object_name(name) {
        true => Ok(name.to_owned()),
        false => Err("expected the name of a node, or node/NAME".to_owned()),
    }
}

/// The prefixes that kubectl accepts before the name of a pool.
const POOL_PREFIXES: [&str; 3] = ["machineconfigpool/", "machineconfigpools/", "mcp/"];

/// The name of a pool, or `mcp/NAME`.
pub(super) fn pool(text: &str) -> Result<String, String> {
    let name = POOL_PREFIXES
        .iter()
        .find_map(|kind| text.strip_prefix(kind));
    let name = name.unwrap_or(text);
    match is_object_name(name) {
        true => Ok(name.to_owned()),
        false => Err("expected the name of a pool, or mcp/NAME".to_owned()),
    }
}

/// A label selector in the syntax of the API server.
pub(super) fn labels(text: &str) -> Result<String, String> {
    let wrong = requirements(text)
        .into_iter()
        .find(|one| !is_requirement(one));
    match wrong {
        // An empty selector selects everything.
        Some(_) if text.trim().is_empty() => Ok(text.to_owned()),
        Some(one) => Err(format!(
            "invalid label selector requirement {one:?}; expected for example key=value, key!=value, key, !key or 'key in (a,b)'"
        )),
        None => Ok(text.to_owned()),
    }
}

/// Splits at commas outside of parentheses.
fn requirements(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let outside = |letter: char| {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth == 0
    };
    text.split(outside).map(str::trim).collect()
}

fn is_requirement(text: &str) -> bool {
    if let Some(key) = text.strip_prefix('!') {
        return is_key(key.trim());
    }
    for operator in ["!=", "==", "=", ">", "<"] {
        if let Some((key, value)) = text.split_once(operator) {
            return is_key(key.trim()) && is_value(value.trim());
        }
    }
    let Some((key, list)) = text.split_once(char::is_whitespace) else {
        return is_key(text);
    };
    let list = list.trim();
    let list = list.strip_prefix("notin").or(list.strip_prefix("in"));
    let list = list.and_then(|list| list.trim().strip_prefix('(')?.strip_suffix(')'));
    is_key(key) && list.is_some_and(|list| list.split(',').all(|value| is_value(value.trim())))
}

fn is_key(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    prefix.is_none_or(is_object_name) && !name.is_empty() && is_value(name)
}

fn is_value(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric();
    let inside = |byte: &u8| letter(*byte) || matches!(byte, b'-' | b'_' | b'.');
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    text.len() <= 63
        && bytes.iter().all(inside)
        && ends.into_iter().flatten().all(|byte| letter(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_selectors_are_parsed_as_by_kubectl_with_errors_named() {
        for text in [
            "",
            "app",
            "!app",
            "app=web",
            "app==web, tier!=db",
            "app=",
            "topology.kubernetes.io/zone in (a, b),x notin (c)",
            "count>3",
        ] {
            assert_eq!(labels(text).as_deref(), Ok(text));
        }
        for (text, named) in [
            ("app=web,=x", "\"=x\""),
            ("a b c", "\"a b c\""),
            ("app in a", "\"app in a\""),
            ("app=web,", "\"\""),
            ("app=we b", "\"app=we b\""),
            ("Bad_/x", "\"Bad_/x\""),
        ] {
            let said = labels(text).unwrap_err();
            let invalid = format!("invalid label selector requirement {named}; expected");
            assert!(said.starts_with(&invalid), "{said}");
        }
    }

    #[test]
    fn a_node_argument_accepts_the_kubectl_output_form() {
        for text in ["worker-1", "node/worker-1", "nodes/worker-1", "no/worker-1"] {
            assert_eq!(node(text).as_deref(), Ok("worker-1"));
        }
        for text in ["", "pod/x", "node/", "a/b", "A"] {
            assert!(node(text).unwrap_err().contains("node/NAME"), "{text}");
        }
    }
}
