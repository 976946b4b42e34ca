//! Compares the documentation with the code: links, codes, tables, examples, commands.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read the pages, lay out files, and fail by panicking"
)]

mod examples;
mod metrics;
mod policies;
mod prose;
mod transcripts;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use clap::CommandFactory as _;
use machinist::cli::Cli;
use machinist_base::reason::Reason;
use machinist_cluster::publisher::is_transient;
use machinist_kube_api::EventReason;
use machinist_pool::HoldReason;
use machinist_status::readiness::{GateEffect, GateName};
use machinist_update::phase::Phase;

fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn page(name: &str) -> String {
    fs::read_to_string(home().join(name)).unwrap()
}

/// Every page below the top level, `docs/`, `tests/` and `examples/`.
fn pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = ["docs", "tests", "examples"]
        .iter()
        .map(|dir| home().join(dir))
        .collect();
    let top = fs::read_dir(home()).unwrap();
    found.extend(top.map(|entry| entry.unwrap().path()));
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found.retain(|path| path.extension().is_some_and(|kind| kind == "md"));
    found
}

/// The cells of every table row, without backticks.
fn rows(text: &str) -> Vec<Vec<String>> {
    let rows = text.lines().filter(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells = row.trim_matches('|').split('|');
        cells
            .map(|cell| cell.trim().replace('`', ""))
            .collect::<Vec<_>>()
    })
    .filter(|cells| !cells[0].starts_with("--"))
    .collect()
}

/// The fenced blocks of one language, without the indentation of their fence.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        if line.trim() != format!("```{language}") {
            continue;
        }
        let block = lines.by_ref().take_while(|line| line.trim() != "```");
        found.push(
            block
                .map(|line| line.get(indent..).unwrap_or_default().to_owned() + "\n")
                .collect(),
        );
    }
    found
}

/// A heading's anchor, by the rules of the renderers.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = kept.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        _ => None,
    });
    kept.collect()
}

#[test]
fn every_documentation_link_resolves() {
    let mut followed = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for rest in text.split("](").skip(1) {
            let link = rest.split(')').next().unwrap();
            if link.starts_with("https://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            assert!(target.exists(), "{}: {link}", page.display());
            let known = || {
                let text = fs::read_to_string(&target).unwrap();
                let mut headings = text.lines().filter(|line| line.starts_with('#'));
                headings.any(|line| anchor(line) == heading)
            };
            assert!(
                heading.is_empty() || known(),
                "{}: no heading for {link}",
                page.display()
            );
            followed += 1;
        }
    }
    assert!(followed > 20, "only {followed} links were found");
}

#[test]
fn documented_differences_from_ignition_match_the_oracle() {
    let section = |text: &str, title: &str| {
        let start = text.find(title).unwrap();
        let rest = text[start..].split_once("\n|").unwrap().1;
        rows(&format!(
            "|{}",
            rest.split_once("\n\n").unwrap_or((rest, "")).0
        ))
    };
    let found = section(&page("tests/oracle/differences.md"), "## Ignition");
    let message = section(&page("docs/config.md"), "## Differences from Ignition");
    assert!(found.len() > 20, "{found:?}");
    assert_eq!(message, found);
}

#[test]
fn every_hold_and_setting_of_a_pool_is_documented() {
    use machinist_kube_api::keys::pool_annotation as setting;
    let rows = rows(&page("docs/pools.md"));
    let holds = rows.iter().filter(|cells| cells.len() == 2);
    let holds: Vec<_> = holds
        .filter(|cells| cells[0] != "code" && !cells[0].starts_with('-'))
        .map(|cells| (cells[0].as_str(), cells[1].clone()))
        .collect();
    let meant = HoldReason::ALL.iter().map(|hold| {
        let meaning = hold.meaning().replace('`', "");
        (hold.as_str(), meaning.trim().to_owned())
    });
    assert_eq!(holds, meant.collect::<Vec<_>>());
    let settings = rows.iter().filter(|cells| cells.len() == 4);
    let named: BTreeSet<_> = settings
        .map(|cells| cells[0].as_str())
        .filter(|name| name.contains('/'))
        .collect();
    let ours = [
        setting::CANARY,
        setting::CANARY_SOAK,
        setting::STOP_AFTER_FAILURES,
        setting::WINDOWS,
        setting::ORDER,
        setting::STEP_ASIDE_AFTER,
        setting::BUDGET_RECOVERY_TIMEOUT,
        setting::START_DEADLINE,
        setting::REBOOT_TIME,
        setting::PAUSE_REASON,
        setting::RESUME,
        setting::PINNED_CONFIG,
        setting::RELEASED_GRANTS,
    ];
    assert_eq!(named, BTreeSet::from(ours));
}

#[test]
fn every_reason_code_is_documented_in_order() {
    let explained: Vec<_> = rows(&page("docs/reasons.md"))
        .into_iter()
        .filter(|cells| cells[0] != "code")
        .collect();
    let message: Vec<_> = explained
        .iter()
        .map(|cells| (cells[0].as_str(), cells[1].clone()))
        .collect();
    let meant: Vec<_> = Reason::ALL
        .iter()
        .map(|code| {
            (
                code.as_str(),
                code.meaning().replace('`', "").trim().to_owned(),
            )
        })
        .collect();
    assert_eq!(message, meant);
    assert!(explained.iter().all(|cells| !cells[2].is_empty()));
}

#[test]
fn every_event_is_documented_in_order_with_its_type() {
    let explained: Vec<_> = rows(&page("docs/events.md"))
        .into_iter()
        .filter(|cells| cells[0] != "reason")
        .collect();
    let message: Vec<_> = explained
        .iter()
        .map(|cells| cells[..3].iter().map(String::as_str).collect::<Vec<_>>())
        .collect();
    let meant: Vec<_> = EventReason::ALL
        .iter()
        .map(|it| vec![it.as_str(), it.weight().as_str(), it.meaning().trim()])
        .collect();
    assert_eq!(message, meant);
    assert!(explained.iter().all(|cells| !cells[3].is_empty()));
}

/// Only names of our own that the code writes or reads.
#[test]
fn exactly_the_node_keys_machinist_uses_are_documented() {
    use machinist_kube_api::keys::{annotation, condition, label, taint};
    let named: BTreeSet<_> = rows(&page("docs/cluster.md"))
        .into_iter()
        .map(|cells| cells[0].clone())
        .filter(|name| name.contains('/') && !name.starts_with("machineconfiguration."))
        .collect();
    let ours = [
        annotation::BLOCKED_BY,
        annotation::CANCEL,
        annotation::CANCELLED,
        annotation::CANCEL_REFUSED,
        annotation::CORDONED,
        annotation::FORCE_DRAIN,
        annotation::GRANT,
        annotation::GRANT_ACKNOWLEDGED,
        annotation::GRANT_ENDS,
        annotation::GRANT_BUDGETS,
        annotation::KEEP_CORDONED,
        annotation::OWNS_REMEDIATION_EXCLUSION,
        annotation::SKIP_ROLLOUT,
        annotation::TAINTS,
        annotation::WINDOWS,
        condition::READY,
        condition::MAINTENANCE,
        condition::DRAIN,
        condition::DRAINED,
        label::NO_REMEDIATION,
        taint::NOT_READY,
    ];
    let example = format!("{}acme.dev-serial", label::RESOURCE_PREFIX);
    let ours = ours.iter().map(|name| (*name).to_owned());
    assert_eq!(named, ours.chain([example]).collect());
}

#[test]
fn documented_config_refusal_codes_exist() {
    let is_code = |cell: &str| {
        cell.starts_with(|c: char| c.is_ascii_uppercase())
            && cell.chars().all(|c| c.is_ascii_alphanumeric())
    };
    let rows = rows(&page("docs/config.md"));
    let codes: Vec<_> = rows
        .iter()
        .filter(|cells| cells.len() == 2 && is_code(&cells[1]))
        .map(|cells| &cells[1])
        .collect();
    assert!(codes.len() > 10, "{codes:?}");
    for code in codes {
        let mut known = Reason::ALL.iter();
        assert!(known.any(|known| known.as_str() == code), "{code}");
    }
}

/// Feature gates of Kubernetes that the pages mention.
const KUBERNETES_GATES: [&str; 2] = ["DRADeviceTaints", "KubeletPodResourcesDynamicResources"];

#[test]
fn documented_gates_and_phases_match_the_code() {
    let gates: Vec<_> = rows(&page("docs/operations.md"))
        .into_iter()
        .filter(|cells| cells.len() == 4 && cells[0] != "gate")
        .map(|cells| (cells[0].clone(), cells[1].clone()))
        .collect();
    let known: Vec<_> = GateName::ALL
        .iter()
        .map(|gate| {
            let effect = match gate.default_effect() {
                GateEffect::Hold => "hold",
                GateEffect::Warn => "warn",
                GateEffect::Off => "off",
            };
            (gate.as_str().to_owned(), effect.to_owned())
        })
        .collect();
    assert_eq!(gates, known);
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for rest in words.split("the gate `").skip(1) {
            let name = rest.split('`').next().unwrap();
            let mut known = GateName::ALL.iter().map(|gate| gate.as_str());
            let is_known = known.any(|gate| gate == name) || KUBERNETES_GATES.contains(&name);
            assert!(is_known, "{}: no gate {name}", page.display());
        }
    }
    let interface = rows(&page("docs/interface.md"));
    let phases = interface.iter().find(|cells| cells[0] == "phase").unwrap();
    assert_eq!(phases[1], Phase::ALL.map(Phase::name).join(", "));
}

/// The word after `machinist ` in backticks or at a prompt.
fn commands(text: &str) -> BTreeSet<String> {
    let marks = ["`machinist ", "&& machinist ", "--release -- "];
    let rests = marks.iter().flat_map(|mark| text.split(mark).skip(1));
    rests
        .map(|rest| {
            rest.split(|c: char| !c.is_ascii_lowercase() && c != '-')
                .next()
                .unwrap()
        })
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn documented_commands_exist() {
    let mut cli = Cli::command();
    cli.build();
    let known: BTreeSet<_> = cli.get_subcommands().map(|one| one.get_name()).collect();
    let mut named = BTreeSet::new();
    for page in pages() {
        for command in commands(&fs::read_to_string(&page).unwrap()) {
            // Commands that are not implemented yet are in a list that states that.
            let later = ["controller", "gather"].contains(&&*command);
            assert!(
                later || known.contains(&*command),
                "{}: {command}",
                page.display()
            );
            named.insert(command);
        }
    }
    assert!(named.len() > 8, "{named:?}");
}

#[test]
fn each_command_has_a_manual_page_with_all_its_flags() {
    let mut cli = Cli::command();
    cli.build();
    let main = examples::machinist(&["man"]);
    let shown = |one: &&clap::Command| !one.is_hide_set() && one.get_name() != "help";
    for command in cli.get_subcommands().filter(shown) {
        let name = command.get_name();
        let page = examples::machinist(&["man", name]);
        assert!(page.contains(&format!(".TH machinist-{name} 1")), "{page}");
        let message = command.get_arguments().filter(|one| !one.is_hide_set());
        for option in message.filter_map(clap::Arg::get_long) {
            let written = option.replace('-', "\\-");
            assert!(page.contains(&written), "machinist-{name}: --{option}");
        }
        let written = name.replace('-', "\\-");
        assert!(
            main.contains(&format!("machinist\\-{written}(1)")),
            "{name}"
        );
    }
}

#[test]
fn the_table_of_degraded_nodes_lists_the_transient_codes() {
    let page = page("docs/openshift.md");
    let (_, page) = page.split_once("## When a node is degraded").unwrap();
    let (table, _) = page.split_once("\n## ").unwrap();
    let named: BTreeSet<String> = rows(table)
        .iter()
        .filter(|cells| cells[1] == "yes")
        .flat_map(|cells| cells[0].split(", "))
        .map(str::to_owned)
        .collect();
    let passing = Reason::ALL.iter().filter(|code| is_transient(**code));
    let passing: BTreeSet<String> = passing.map(ToString::to_string).collect();
    assert_eq!(named, passing);
}
