//! Malicious texts: each is refused, and nothing panics. How soon, `tests/bench` measures.

use std::time::{Duration, Instant};

use machinist_base::reason::Reason;
use machinist_ignition::{ConfigRules, Refusal, parse};
use machinist_testkit::finish_in_time;
use proptest::prelude::*;

fn refusals(text: &str) -> Vec<Refusal> {
    let text = text.to_owned();
    finish_in_time(move || {
        parse(&text, "hostile.yaml", &ConfigRules::default()).expect_err("it should be refused")
    })
}

/// The shortest time of a few tries: load can only add to a time.
fn cost(text: &str) -> Duration {
    let tries = (0..3).map(|_| {
        let began = Instant::now();
        let _ = refusals(text);
        began.elapsed()
    });
    tries.min().unwrap()
}

/// Four times the text may cost four times as much, but not sixteen times. What costs only
/// milliseconds is not compared.
fn assert_not_quadratic(what: &str, text: impl Fn(usize) -> String, size: usize) {
    let (small, large) = (cost(&text(size)), cost(&text(4 * size)));
    let most = small * 10 + Duration::from_millis(100);
    assert!(
        large < most,
        "{what}: {small:?}, four times as much {large:?}"
    );
}

fn bomb(levels: usize, width: usize) -> String {
    let mut text = String::from("a0: &a0 [lol]\n");
    for level in 1..levels {
        let below = vec![format!("*a{}", level - 1); width].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{below}]\n"));
    }
    text
}

#[test]
fn a_yaml_alias_bomb_is_rejected() {
    // Expanded, each would take longer than any test.
    for (levels, width) in [(30, 10), (60, 2), (6, 1000)] {
        let refusals = refusals(&bomb(levels, width));
        assert_eq!(refusals[0].reason, Reason::SyntaxInvalid, "{refusals:?}");
    }
}

#[test]
fn a_large_text_repeated_by_yaml_aliases_is_rejected() {
    let mut text = format!("big: &big {}\nlist:\n", "x".repeat(100_000));
    text.push_str(&"- *big\n".repeat(10_000));
    let refusals = refusals(&text);
    assert!(
        refusals[0].message.contains("aliases expand"),
        "{refusals:?}"
    );
}

#[test]
fn nesting_depth_is_limited_in_every_syntax() {
    type Nested = fn(usize) -> String;
    let syntaxes: [(&str, Nested); 5] = [
        ("brackets", |n| {
            format!("a: {}{}", "[".repeat(n), "]".repeat(n))
        }),
        ("braces", |n| {
            format!("{}{}", "{a: ".repeat(n), "}".repeat(n))
        }),
        ("dashes", |n| "- ".repeat(n)),
        // The text itself grows with the square of its depth.
        ("indented", |n| {
            let depth = n.isqrt() * 7;
            (0..depth)
                .map(|n| format!("{}a:\n", " ".repeat(n)))
                .collect()
        }),
        ("aliases", |n| bomb(n / 25, 1)),
    ];
    for (what, text) in syntaxes {
        let refusals = refusals(&text(5000));
        let message = &refusals[0].message;
        // The parser's own limit, or ours.
        let report = message.contains("recursion") || message.contains("nest deeper");
        assert!(report, "{what}: {message}");
        assert_not_quadratic(what, text, 5000);
    }
}

#[test]
fn a_config_above_the_size_limit_is_not_parsed() {
    let refusals = refusals(&"a".repeat((8 << 20) + 1));
    assert!(refusals[0].message.contains("8388608"), "{refusals:?}");
}

#[test]
fn gzip_contents_are_limited_over_all_files_of_a_config() {
    use std::io::Write as _;
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    for _ in 0..40 {
        packer.write_all(&vec![0; 1 << 20]).unwrap();
    }
    let packed = packer.finish().unwrap();
    let source: String = packed.iter().map(|byte| format!("%{byte:02x}")).collect();
    let text = |paths: &[&str]| {
        let files = paths.iter().map(|path| {
            format!("{{path: {path}, contents: {{compression: gzip, source: \"data:,{source}\"}}}}")
        });
        let files: Vec<String> = files.collect();
        let files = files.join(", ");
        format!("{{ignition: {{version: 3.5.0}}, storage: {{files: [{files}]}}}}")
    };
    assert!(parse(&text(&["/a"]), "a.ign", &ConfigRules::default()).is_ok());
    let refused = refusals(&text(&["/a", "/b"]));
    assert_eq!(refused.len(), 1);
    assert!(refused[0].message.contains("67108864"), "{}", refused[0]);
    let field = refused[0].field.as_deref();
    assert_eq!(field, Some("storage.files[1].contents.source"));
}

#[test]
fn excess_config_errors_are_truncated_and_counted() {
    let mut text = String::from("ignition: {version: 3.5.0}\n");
    for number in 0..1500 {
        text.push_str(&format!("unknown{number}: 1\n"));
    }
    let refusals = refusals(&text);
    assert_eq!(refusals.len(), 1001);
    assert_eq!(&*refusals[1000].message, "500 more are not listed");
}

/// A valid text for mutations to start from.
const SEED: &str = include_str!("../../examples/machine/40-oneshot.yaml");
const BUTANE: &str = include_str!("../../examples/machine/20-sysctl.bu");

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn config_parser_never_panics_or_hangs_on_any_text(text in any::<String>()) {
        let _ = finish_in_time(move || parse(&text, "a.yaml", &ConfigRules::default()));
    }

    #[test]
    fn config_parser_never_panics_or_hangs_on_random_yaml(
        text in "([-?:,\\[\\]{}#&*!|>'\"%@` \n\ta1]|---\n|\\.\\.\\.\n|<<: |kind: |ignition: ){0,80}",
    ) {
        let _ = finish_in_time(move || parse(&text, "a.yaml", &ConfigRules::default()));
    }

    #[test]
    fn config_parser_never_panics_on_mutated_configs(
        butane in any::<bool>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..9, "[ -~\n]{0,3}"), 1..6),
    ) {
        let mut text: Vec<char> = if butane { BUTANE } else { SEED }.chars().collect();
        for (at, gone, new) in edits {
            let at = at.index(text.len() + 1);
            let end = (at + gone).min(text.len());
            text.splice(at..end, new.chars());
        }
        let text: String = text.into_iter().collect();
        // Every refusal has a position in this text.
        let lines = u32::try_from(text.lines().count() + 1).unwrap();
        if let Err(refusals) = parse(&text, "a.yaml", &ConfigRules::default()) {
            prop_assert!(!refusals.is_empty());
            for refusal in refusals {
                prop_assert!(refusal.line.is_some_and(|line| (1..=lines).contains(&line)), "{refusal}");
                prop_assert!(refusal.column.is_some(), "{refusal}");
            }
        }
    }
}
