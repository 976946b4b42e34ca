//! Formats the result of `machinist uninstall` as text.

use std::fmt::Write as _;

use super::{NodeRemovals, UninstallOutput, paths};

/// The removed objects, or those that would be removed: one line each.
pub(super) fn page(removed: &UninstallOutput) -> String {
    let mut page = String::new();
    let done = match removed.dry_run {
        true => " (dry run)",
        false => "",
    };
    // Writing to a String cannot fail.
    for path in &removed.paths {
        let _ = writeln!(page, "{path} removed{done}");
    }
    if let Some(node) = &removed.node {
        on_node(&mut page, node, done);
    }
    for dir in &removed.kept_elsewhere {
        let _ = writeln!(page, "{dir} removed{done}");
    }
    if removed.purged {
        let _ = writeln!(page, "{} removed{done}", paths::state_dir());
    }
    if removed.state_kept {
        let _ = writeln!(
            page,
            "{} kept; use --purge to remove it",
            paths::state_dir()
        );
    }
    if page.is_empty() {
        page.push_str("Nothing to remove.\n");
    }
    page
}

fn on_node(page: &mut String, node: &NodeRemovals, done: &str) {
    let name = &node.name;
    if !node.found {
        let _ = writeln!(page, "node/{name} not found");
    }
    if node.uncordoned {
        let _ = writeln!(page, "node/{name} uncordoned{done}");
    }
    if node.kept_cordoned {
        let _ = writeln!(
            page,
            "node/{name} stays cordoned (machinist.dev/keep-cordoned)"
        );
    }
    for (what, names) in [
        ("annotation", &node.annotations),
        ("label", &node.labels),
        ("taint", &node.taints),
        ("condition", &node.conditions),
    ] {
        for gone in names {
            let _ = writeln!(page, "node/{name} {what} {gone} removed{done}");
        }
    }
    if node.machine_config_node {
        let _ = writeln!(page, "machineconfignode/{name} removed{done}");
    }
    if node.resource_slices > 0 {
        let _ = writeln!(page, "resourceslices of node/{name} removed{done}");
    }
}
