use clap::{CommandFactory, Parser};

use super::*;
use machinist_status::settings::{Owners, Settings, SourceSetting};

/// All commands, including those that other modules compose, for parsing.
#[derive(Debug, Parser)]
#[command(name = "machinist")]
struct All {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Composed,
}

#[derive(Debug, clap::Subcommand)]
enum Composed {
    Run(run::RunArgs),
    Plan(plan::PlanArgs),
    Apply(apply::ApplyArgs),
    Verify(verify::VerifyArgs),
    Rollback(rollback::RollbackArgs),
    Render(render::RenderArgs),
    History(history::HistoryArgs),
    Devices(devices::DevicesArgs),
    Recover(recover::RecoverArgs),
}

fn parse(line: &str) -> Result<All, clap::Error> {
    All::try_parse_from(line.split(' '))
}

#[test]
fn command_line_definitions_are_consistent() {
    Cli::command().debug_assert();
    All::command().debug_assert();
}

#[test]
fn documented_command_lines_are_parsed() {
    for line in [
        "machinist run",
        "machinist run --root ./sandbox --source dir:examples/machine",
        "machinist --root ./sandbox run --owners record --admin 127.0.0.1:0 -vv",
        "machinist plan",
        "machinist plan a.yaml b.ign -o json",
        "machinist plan --source auto --output yaml",
        "machinist apply a.yaml --yes --owners set",
        "machinist verify -o json --root /host",
        "machinist rollback -y",
        "machinist render a.yaml b.yaml -o json",
        "machinist history -n 3",
        "machinist devices list -o json",
        "machinist devices check fuse.yaml",
        "machinist recover",
    ] {
        let parsed = parse(line);
        assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
    }
    for line in [
        "machinist plan a.yaml --source dir:x",
        "machinist plan --source x",
        "machinist plan -o xml",
        "machinist run --admin localhost",
        "machinist run a.yaml",
        "machinist run --owners mine",
        "machinist devices",
        "machinist devices check",
        "machinist recover now",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
}

#[test]
fn flags_are_converted_to_settings() {
    let line =
        "machinist run --source dir:a/b --owners record --admin 127.0.0.1:1 -v --log-format json";
    let all = parse(line).unwrap();
    let Composed::Run(run) = &all.command else {
        panic!("{all:?}");
    };
    let directory = tempfile::tempdir().unwrap();
    let root = machinist_rootfs::Root::open(directory.path()).unwrap();
    let place = all.global.settings_place(&root, run.flags()).unwrap();
    let settings = Settings::from_fragments([place.flags]).unwrap();
    assert_eq!(
        settings.source,
        SourceSetting::CallersDirectory("a/b".to_owned())
    );
    assert_eq!(settings.owners, Owners::Record);
    assert_eq!(settings.admin.listen.to_string(), "127.0.0.1:1");
    assert!(settings.admin.chosen);
    let printed = settings
        .effective
        .iter()
        .filter(|one| one.from != machinist_status::settings::SettingOrigin::Default);
    let printed: Vec<_> = printed.map(|one| (one.key, one.from.to_string())).collect();
    let expected = [
        ("admin.listen", "--admin"),
        ("log.format", "--log-format"),
        ("log.level", "-v"),
        ("owners", "--owners"),
        ("source", "--source"),
    ];
    assert_eq!(printed, expected.map(|(key, from)| (key, from.to_owned())));
}

#[test]
fn the_recover_command_is_hidden_from_help() {
    let help = All::command().render_help().to_string();
    assert!(
        help.contains("rollback") && !help.contains("recover"),
        "{help}"
    );
}
